"""Starts a command: `hydra.main` around a task that imports the command when a job runs."""

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from taming.cli.mistakes import (
    DIRECTORIES,
    check_config,
    check_overrides,
    config_directory,
    explain,
)
from taming.runtime.errors import UserError, printable

__all__ = ["start"]

# the variables by which launchers number the processes, or machines, of one run
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

# why a place cannot be written to
UNWRITABLE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST)

log = logging.getLogger("taming")


def start(name: str) -> None:
    """Runs a command by `hydra.main`; its module is imported when a job runs, and not for `--help`.

    A mistake of the user is printed as one line on standard error, with exit status 2.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # Optuna's database
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and we say what is wrong
    sys.path.append(str(Path.cwd()))  # the user's own modules: Python looks beside the script
    main = hydra.main(config_path=str(config_directory()), config_name=name, version_base="1.3")
    arguments = [a for a in sys.argv[1:] if "=" in a and not a.startswith("-")]
    try:
        overrides = OverridesParser.create().parse_overrides(arguments)
        check_overrides(overrides)
        if all("=" in a or a in ("-m", "--multirun") for a in sys.argv[1:]):
            # what all jobs of a sweep share is not in the names of their directories
            shared = ",".join(repr(o.key_or_group) for o in overrides if not o.is_sweep_override())
            sys.argv.append(f"hydra.job.config.override_dirname.exclude_keys=[{shared}]")
        main(partial(_run_job, name))()
    except Exception as error:
        _exit_with(error, name)


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _run_job(name: str, config: DictConfig) -> float | None:
    """Runs a command once; returns a sweep's objective."""
    job = HydraConfig.get()
    directory = Path(job.runtime.output_dir)
    try:
        check_config(config)
        for key in ("run_dir", "output_dir"):
            if key in config:  # where this job writes, in a sweep too
                config[key] = str(_below_here(directory))
        with read_write(job), _as_if_alone(job):  # type: ignore[arg-type]
            job.run.dir = str(directory)  # Lightning hands it to the processes it starts
            command = import_module(f"taming.cli.{name}")
            with _only_run_in(directory) if "run_dir" in config else nullcontext():
                objective: float | None = command.main(config)
        return objective
    except Exception as error:
        if job.mode == RunMode.MULTIRUN:  # the other jobs go on
            raise
        _exit_with(error, name)
    finally:
        _remove_if_empty(directory)


@contextmanager
def _as_if_alone(job: HydraConf) -> Iterator[None]:
    """Lets Lightning start further processes of one job of a sweep, and leaves no trace.

    Lightning starts them with the arguments of this process, which are those of the whole sweep.
    """
    if job.mode != RunMode.MULTIRUN:
        yield
        return
    arguments, environment = sys.argv, dict(os.environ)
    sys.argv = [sys.argv[0], *job.overrides.task, "hydra.mode=RUN"]
    try:
        yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _only_run_in(directory: Path) -> Iterator[None]:
    """Keeps other runs out of a run's directory; the processes of one run count as one."""
    from filelock import FileLock, Timeout  # slow to import: only where it is used

    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        yield
        return
    lock = FileLock(directory / ".lock")  # the system releases it when this process dies
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(
            f"another process is training in {directory}: wait until it has ended, or give another "
            "run_dir."
        ) from error
    except (OSError, NotImplementedError) as error:  # some network file systems
        log.info("note: %s cannot be locked (%s): start no other run there", directory, error)
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _exit_with(error: Exception, name: str) -> NoReturn:
    """Ends the program with a sentence if the user can mend the error, and raises others again."""
    message = str(error)
    if isinstance(error, HydraException):
        message = explain(error, name)
    elif type(error).__name__ == "OutOfMemoryError":  # of PyTorch
        notes = getattr(error, "__notes__", ["Give a smaller batch_size."])
        why = message.splitlines()[0]
        message = f"the GPU has too little memory ({why}). {' '.join(notes)}"
    elif message.startswith("DataLoader worker"):
        message = (
            f"a process that loads images has died ({message.strip(' .')}). If memory was short, "
            "let fewer load them: data.loader.num_workers=1, or 0 for none."
        )
    elif not isinstance(error, UserError | OmegaConfBaseException) and (
        getattr(error, "errno", None) not in UNWRITABLE
    ):
        raise error
    # an error in a data loader's worker comes with PyTorch's traceback
    in_worker = re.match(
        r"Caught \w+ in DataLoader worker.*\n[\w.]+Error: (.*)", message, re.DOTALL
    )
    message = message if in_worker is None else in_worker[1].strip()
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _below_here(path: Path) -> Path:
    """Returns the path relative to the current directory, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _remove_if_empty(directory: Path) -> None:
    """Removes a directory that Hydra made and no job wrote to, and empty ones above it."""
    path = _below_here(directory)
    with suppress(OSError):  # such as an empty drive
        while path != Path() and path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            path = Path() if path.is_absolute() else path.parent


def _job_directory(*, _root_: DictConfig) -> str:
    """Returns the value of the first of `DIRECTORIES` that is set; `.` where none is."""
    values = [_root_.get(name) for name in DIRECTORIES]
    return str(Path(next((v for v in values if v and v != "auto"), ".")).expanduser())


OmegaConf.register_new_resolver("job_directory", _job_directory, replace=True)
