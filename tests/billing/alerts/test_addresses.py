"""Webhooks reach the public internet over TLS and hosts that the operator names; however it is written."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from billing.alerts.addresses import BadAddress, checked, is_public, parse_target, resolve

PRIVATE = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
    *(
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
    ),
    *("::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::"),
    "2001:db8::1",
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "172.32.0.1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(BadAddress):
        checked([ip_address("8.8.8.8"), ip_address(address)], trusted=False)
    assert checked([ip_address(address)], trusted=True) == [ip_address(address)]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert is_public(ip_address(address))
    assert checked([ip_address(address)], trusted=False) == [ip_address(address)]


def test_a_name_without_addresses_is_refused() -> None:
    with pytest.raises(BadAddress):
        checked([], trusted=True)


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]", "LOCALHOST."],
)
async def test_the_loopback_is_found_behind_every_way_to_write_it(host: str) -> None:
    target = parse_target(f"https://{host}/hook", private_hosts="")
    with pytest.raises(BadAddress):
        await resolve(target)


async def test_a_host_that_the_operator_names_may_be_private_and_go_without_tls() -> None:
    target = parse_target("http://localhost:8123/a?b=c", private_hosts="hooks.internal, LocalHost")
    assert all(address.is_loopback for address in await resolve(target))
    assert target.url_at(ip_address("127.0.0.1")) == "http://127.0.0.1:8123/a?b=c"
    assert target.host_header == "localhost:8123"


async def test_trust_in_one_host_is_not_trust_in_another() -> None:
    with pytest.raises(BadAddress):
        parse_target("http://localhost.example/", private_hosts="localhost")
    with pytest.raises(BadAddress):
        await resolve(parse_target("https://127.0.0.1/", private_hosts="localhost"))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https://",
        "https:///path",
        "https://user:pass@example.com/",
        "https://user@example.com/",
        "https://example.com/#part",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\n",
        "https://[::1/",
        "example.com",
        "//example.com/",
        "https://" + "a" * 300 + ".com/",
    ],
)
def test_what_is_no_plain_https_url_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        parse_target(url, private_hosts="")


def test_an_address_of_either_kind_takes_the_place_of_the_host() -> None:
    target = parse_target("https://hooks.example/x", private_hosts="")
    assert target.host_header == "hooks.example"
    assert target.url_at(ip_address("8.8.8.8")) == "https://8.8.8.8:443/x"
    assert target.url_at(ip_address("2606:4700::1111")) == "https://[2606:4700::1111]:443/x"
