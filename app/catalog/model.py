"""What is served: a model is what a client asks for, a deployment serves it, backends do the work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.core.ids import BackendId, DeploymentId, ModelId


@dataclass(frozen=True)
class Model:
    """A catalogue entry; limits are tokens. `default_output_tokens` stands in for a maximum not named.

    tokenizer: path of the model's own `tokenizer.json` on the gateways' machines, where they can read one.
    """

    id: ModelId
    name: str
    display_name: str
    context_limit: int
    max_output_tokens: int
    default_output_tokens: int
    status: str
    created_at: datetime
    tokenizer: str | None = None


@dataclass(frozen=True)
class Deployment:
    """A model served under one scheduling policy."""

    id: DeploymentId
    model_id: ModelId
    policy: str
    created_at: datetime


@dataclass(frozen=True)
class Backend:
    """One engine process with an address."""

    id: BackendId
    deployment_id: DeploymentId
    base_url: str
    engine: str
    served_model: str
    max_concurrent: int
    weight: int
    status: str
    created_at: datetime
