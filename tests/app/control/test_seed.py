"""The first steps of an installation, through the API alone."""

from __future__ import annotations

from tests.app.control.world import World


async def test_a_fresh_installation_is_set_up_through_the_api_alone(world: World) -> None:
    tenant = await world.tenant("Demo", timezone="Europe/Berlin")
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "Demo"})
    key = await world.made(f"/projects/{project['id']}/keys", {"name": "demo"})
    model = await world.priced_model("smollm2-135m-instruct")
    deployment = await world.made("/deployments", {"model_id": model["id"]})
    backend = await world.made(
        "/backends",
        {
            "deployment_id": deployment["id"],
            "base_url": "http://127.0.0.1:8082/",
            "engine": "llama-server",
            "served_model": "smollm2-135m-instruct",
        },
    )
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    gift = {"amount": "10", "kind": "promo", "reason": "demo", "reference": "demo"}
    await world.made(f"/wallets/{wallet['id']}/grants", gift, **{"idempotency-key": "demo"})

    assert key["key"].startswith("sk-sy-")
    assert len(key["key"]) == len("sk-sy-") + 43
    assert model["status"] == "published"
    assert backend["base_url"] == "http://127.0.0.1:8082"
    after = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    assert (after["posted"], after["held"], after["available"]) == ("10", "0", "10")
    entries = (await world.operator.get(f"/api/v1/wallets/{wallet['id']}/entries")).json()["data"]
    assert [(entry["kind"], entry["amount"]) for entry in entries] == [("grant", "10")]
    me = (await world.operator.get("/api/v1/me")).json()
    assert me["role"] == "operator"
    assert me["tenant_id"] is None
