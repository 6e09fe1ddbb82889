"""What an operator decides. Imports no torch."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..config import checked
from ..params import SampleParams

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Limits(BaseModel):
    """What one request may ask for, and how many may ask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_n: int = Field(64, ge=1, description="Samples per request, over all its prompts.")
    max_steps: int = Field(256, ge=1, description="Network evaluations per sample.")
    max_length: int = Field(256, ge=1, description="Tokens per sample.")
    max_prompt: int = Field(
        1 << 15,
        ge=1,
        description="Characters of a prompt: to cut a long text into tokens takes long.",
    )
    max_body: int = Field(1 << 20, ge=1, description="Bytes of a request's body.")
    max_rows: int = Field(
        64, ge=1, description="Samples in flight at a time, of all requests together."
    )
    max_queue: int = Field(64, ge=1, description="Requests that wait; more are answered with 429.")
    timeout_s: float = Field(
        120.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds a request may take, waiting included.",
    )
    receive_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="Seconds in which a request must arrive whole."
    )
    send_timeout_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Seconds an answer may wait unread."
    )
    score_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="Seconds that scoring one text may take."
    )
    score_memory_mb: int = Field(
        2048, ge=1, description="Megabytes that the code of a task may take."
    )


def _check_given(given: dict[str, Any]) -> dict[str, Any]:
    checked(SampleParams, given)
    return given


class ServeSettings(BaseModel):
    """One server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    limits: Limits = Field(default_factory=lambda: Limits.model_validate({}))
    given: Annotated[dict[str, Any], AfterValidator(_check_given)] = Field(
        default_factory=dict
    )  # where a request says nothing
    api_key: str | None = Field(None, min_length=1, repr=False)
    host_names: Sequence[str] | None = None  # what the Host header may say; None is anything
    cors: Sequence[str] = ()
    tasks: Sequence[str] = (
        "countdown",
        "minicode",
    )  # whose problems the explorer offers: these need no download
    store: Path | None = None  # the runs that `/runs` shows
    pass_rows: Sequence[Annotated[int, Field(ge=1)]] = Field((4, 8, 16), min_length=1)
    workers: int = Field(1, ge=1)  # network passes side by side

    @property
    def defaults(self) -> SampleParams:
        """What a request gets that says nothing."""
        return checked(SampleParams, self.given)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_binding(host: str, api_key: str | None, *, open_to_all: bool) -> None:
    """Only this machine may use a server without a key, unless the operator says otherwise."""
    if not is_loopback(host) and api_key is None and not open_to_all:
        raise ValueError(
            f"--host {host} lets other machines in: give an API key (--api-key, or ODDLM_API_KEY), or say --open-to-all"
        )
