"""Where a study lives: a database that answers, and what becomes of trials whose process is gone."""

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

RETRIES = 2  # of a trial whose process was killed: a setting that kills it every time is given up
HEARTBEAT_S, GRACE_S = (
    20,
    120,
)  # a process on another machine that has been silent for longer is dead
CONNECT_S = 5
PROCESS, RETRY, PLACE = "process", "retry", "place"  # attributes of a trial


def optuna_library() -> Any:
    try:
        import optuna
        import psutil  # noqa: F401
    except ImportError as error:
        raise ValueError("tuning needs the extra 'tune': pip install 'oddlm[tune]'") from error
    optuna.logging.set_verbosity(
        optuna.logging.ERROR
    )  # what happens to trials is told by the command
    return optuna


def open_storage(url: str) -> Any:
    """A database that answers; ValueError in seconds where it does not, without the password in the
    message.
    """
    optuna_library()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        parsed = None
    drivers = {
        "sqlite": "sqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
    }
    if parsed is None or parsed.drivername.partition("+")[0] not in drivers:
        scheme, colon, _ = url.partition(":")  # the rest may hold a password
        raise ValueError(
            f"a storage is sqlite:///FILE or postgresql://USER@HOST/DATABASE, not {scheme + '://...' if colon else url!r}"
        )
    parsed = parsed.set(drivername=drivers[parsed.drivername.partition("+")[0]])
    arguments = {"timeout": 60} if parsed.drivername == "sqlite" else {"connect_timeout": CONNECT_S}
    try:
        return _connected(parsed.render_as_string(hide_password=False), arguments)
    except ImportError as error:
        raise ValueError(
            f"PostgreSQL needs the extra 'postgres': pip install 'oddlm[postgres]' ({error})"
        ) from error
    except (
        SQLAlchemyError,
        RuntimeError,
    ) as error:  # the latter: tables of another version of Optuna
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise ValueError(f"storage {parsed.render_as_string()} cannot be used: {reason}") from error


def bury(study: "optuna.Study") -> None:
    """Trials whose process is gone count as failed and are tried again: at once on this machine,
    elsewhere after GRACE_S.
    """
    optuna = optuna_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if _dead(trial.user_attrs.get(PROCESS)):
            try:
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            except ValueError:  # another process was first
                continue
            retry(study, trial)


def retry(study: "optuna.Study", trial: "optuna.Trial | optuna.trial.FrozenTrial") -> None:
    """The same settings again, in the next trial."""
    tried = trial.user_attrs.get(RETRY, 0)
    if tried < RETRIES:
        study.enqueue_trial(
            trial.params, user_attrs={RETRY: tried + 1, PLACE: place_of(study, trial)}
        )


def place_of(study: "optuna.Study", trial: "optuna.Trial | optuna.trial.FrozenTrial") -> int:
    """Which trial it is, not counting retries, which have the place of what they repeat."""
    if PLACE in trial.user_attrs:
        return int(trial.user_attrs[PLACE])
    earlier = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number]
    return trial.number - sum(RETRY in t.user_attrs for t in earlier)


def living_process(pid: int) -> dict[str, Any] | None:
    """What tells a living process from all others, its successors under the same number too; None
    where there is none, or nothing that tells this machine and its container from others.
    """
    import psutil

    try:
        boot = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        )  # two machines may start in the same second
        space = Path("/proc/self/ns/pid").readlink()
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = process.create_time() - psutil.boot_time()  # both move when the clock is set
    except (OSError, psutil.NoSuchProcess):
        return None
    return {"machine": f"{boot} {space}", "pid": pid, "started": round(started, 2)}


def _connected(url: str, arguments: Mapping[str, Any]) -> Any:
    optuna = optuna_library()
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    connect = partial(
        optuna.storages.RDBStorage,
        url,
        engine_kwargs={"connect_args": arguments},
        heartbeat_interval=HEARTBEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=retry,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for pause in (0.2, 0.5, 1.0):
            with suppress(
                IntegrityError, ProgrammingError
            ):  # another process is making the same tables
                return connect()
            time.sleep(pause)
        return connect()


def _dead(process: Mapping[str, Any] | None) -> bool:
    """Of this machine, and gone."""
    import psutil

    here = living_process(os.getpid())
    if process is None or here is None or process["machine"] != here["machine"]:
        return False
    try:
        return living_process(process["pid"]) != process
    except psutil.AccessDenied:  # another user's, on a system that hides them
        return False
