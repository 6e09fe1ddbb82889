"""The settings of a server. Does not import torch."""

import ipaddress
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..config import checked
from ..params import SampleParams

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Limits(BaseModel):
    """Limits on requests, on their number, and on the time they may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_n: int = Field(64, ge=1, description="Samples per request, over all its prompts.")
    max_steps: int = Field(256, ge=1, description="Network evaluations per sample.")
    max_length: int = Field(256, ge=1, description="Tokens per sample.")
    max_prompt: int = Field(
        1 << 15,
        ge=1,
        description="Characters of a prompt, because tokenizing a long text takes long.",
    )
    max_body: int = Field(1 << 20, ge=1, description="Bytes of a request body.")
    max_rows: int = Field(
        64, ge=1, description="Samples in progress at the same time, over all requests."
    )
    max_queue: int = Field(
        64, ge=1, description="Requests in the queue; further ones are answered with 429."
    )
    timeout_s: float = Field(
        120.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds a request may take, including its time in the queue.",
    )
    receive_timeout_s: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds within which a request must be complete.",
    )
    send_timeout_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Seconds an answer may remain unread."
    )
    score_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="Seconds that scoring a text may take."
    )
    score_memory_mb: int = Field(
        2048, ge=1, description="Megabytes of memory that the code of a task may use."
    )


def _check_given(given: dict[str, Any]) -> dict[str, Any]:
    checked(SampleParams, given)
    return given


class ServeSettings(BaseModel):
    """The settings of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    created: int = Field(default_factory=lambda: int(time.time()))
    limits: Limits = Field(default_factory=lambda: Limits.model_validate({}))
    # settings used for fields missing from a request
    given: Annotated[dict[str, Any], AfterValidator(_check_given)] = Field(default_factory=dict)
    api_key: str | None = Field(None, min_length=1, repr=False)
    host_names: Sequence[str] | None = None  # accepted in the Host header; None accepts any
    cors: Sequence[str] = ()
    tasks: Sequence[str] = ("countdown", "minicode")  # for the explorer; these need no download
    store: Path | None = None  # the runs shown at `/runs`
    pass_rows: Sequence[Annotated[int, Field(ge=1)]] = Field((4, 8, 16), min_length=1)
    workers: int = Field(1, ge=1)  # concurrent network passes

    @property
    def defaults(self) -> SampleParams:
        """The settings of a request that sends none."""
        return checked(SampleParams, self.given)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_binding(host: str, api_key: str | None, *, open_to_all: bool) -> None:
    """Raise ValueError if other machines could use the server without a key.

    `open_to_all` allows it.
    """
    if not is_loopback(host) and api_key is None and not open_to_all:
        raise ValueError(
            f"--host {host} lets other machines in: set an API key (--api-key or ODDLM_API_KEY), "
            "or allow access without one (--open-to-all)"
        )
