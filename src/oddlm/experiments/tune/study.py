"""The database of a study, and the trials whose process has died."""

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

RETRIES = 2  # of a trial whose process was killed; the settings may be what kills it
HEARTBEAT_S, GRACE_S = 20, 120  # a process on another machine is dead after GRACE_S of silence
CONNECT_S = 5
PROCESS, RETRY, PLACE = "process", "retry", "place"  # attributes of a trial


def optuna_library() -> Any:
    try:
        import optuna
        import psutil  # noqa: F401
    except ImportError as error:
        raise ValueError("tuning needs the extra 'tune': pip install 'oddlm[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the command itself reports on trials
    return optuna


def open_storage(url: str) -> Any:
    """Open a database; raise ValueError within seconds if it does not answer.

    The message does not contain the password.
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
        scheme, colon, _ = url.partition(":")
        shown = f"{scheme}://..." if colon else url  # the rest may hold a password
        raise ValueError(
            f"a storage must be sqlite:///FILE or postgresql://USER@HOST/DATABASE, not {shown!r}"
        )
    parsed = parsed.set(drivername=drivers[parsed.drivername.partition("+")[0]])
    arguments = {"timeout": 60} if parsed.drivername == "sqlite" else {"connect_timeout": CONNECT_S}
    try:
        return _connected(parsed.render_as_string(hide_password=False), arguments)
    except ImportError as error:
        raise ValueError(
            f"PostgreSQL needs the extra 'postgres': pip install 'oddlm[postgres]' ({error})"
        ) from error
    # RuntimeError: the tables are of another version of Optuna
    except (SQLAlchemyError, RuntimeError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise ValueError(f"storage {parsed.render_as_string()} cannot be used: {reason}") from error


def fail_dead_trials(study: "optuna.Study") -> None:
    """Mark trials whose process has died as failed, and retry them.

    A dead process on this machine is noticed at once, one on another machine after GRACE_S.
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
    """Queue the same settings for the next trial, unless they were retried too often."""
    tried = trial.user_attrs.get(RETRY, 0)
    if tried < RETRIES:
        study.enqueue_trial(
            trial.params, user_attrs={RETRY: tried + 1, PLACE: place_of(study, trial)}
        )


def place_of(study: "optuna.Study", trial: "optuna.Trial | optuna.trial.FrozenTrial") -> int:
    """Return the trial's number without counting retries; a retry keeps the original's place."""
    if PLACE in trial.user_attrs:
        return int(trial.user_attrs[PLACE])
    earlier = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number]
    return trial.number - sum(RETRY in t.user_attrs for t in earlier)


def process_identity(pid: int) -> dict[str, Any] | None:
    """Return what identifies a living process, even if its pid is used again later.

    None if there is no such process, or if this machine and container cannot be identified.
    """
    import psutil

    try:
        # two machines may boot in the same second, so the time of boot would not do
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").readlink()
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = process.create_time() - psutil.boot_time()  # setting the clock changes both
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
            # Another process may be creating the same tables.
            with suppress(IntegrityError, ProgrammingError):
                return connect()
            time.sleep(pause)
        return connect()


def _dead(process: Mapping[str, Any] | None) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    import psutil

    here = process_identity(os.getpid())
    if process is None or here is None or process["machine"] != here["machine"]:
        return False
    try:
        return process_identity(process["pid"]) != process
    except psutil.AccessDenied:  # another user's process, on a system that hides those
        return False
