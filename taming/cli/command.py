"""What every command does around its own work. Nothing here imports PyTorch.

A command is one function with three decorators::

    @command
    @hydra.main(config_path=CONFIGS, config_name="sample", version_base="1.3")
    @job
    def main(config: DictConfig) -> None: ...

`command` turns mistakes into one line. Hydra composes the configuration. `job` prepares the
directory that the job writes into. The function imports what it needs in its body, so that `--help`
and mistakes in the command line answer at once.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from taming.cli import overview
from taming.cli.mistakes import (
    check_config,
    check_overrides,
    config_directory,
    exit_with,
    targets_in,
)
from taming.cli.settings import TABLE, Trait
from taming.runtime.errors import UserError, printable

__all__ = ["CONFIGS", "at_end_of_job", "command", "job", "locked"]

CONFIGS = str(config_directory())
# flags of Hydra that print something instead of running a job
PRINTING = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i")
at_end_of_job = ExitStack()  # what the present job has to release

log = logging.getLogger("taming")


def command(main: Callable[..., Any]) -> Callable[[], None]:
    """Turns the function that `hydra.main` returns into a program for the command line.

    The program prints a user error as one line on standard error and exits with status 2.
    A command's module and its file in `configs/` share a name.
    """
    name = main.__module__.rpartition(".")[2]

    @wraps(main)
    def program() -> None:
        try:
            _prepare()
            main()
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            exit_with(error, name)

    return program


def _prepare() -> None:
    """Sets up logging, and checks the command line before Hydra composes it."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # Optuna's database
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, so that we can explain the error
    if any(argument in PRINTING for argument in sys.argv[1:]) and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` ends like other programs
    arguments = [a for a in sys.argv[1:] if "=" in a and not a.startswith("-")]
    overrides = OverridesParser.create().parse_overrides(arguments)
    check_overrides(overrides)
    if all("=" in a or a in ("-m", "--multirun") for a in sys.argv[1:]):
        # the name of a job's directory in a sweep contains only what differs between jobs
        shared = ",".join(repr(o.key_or_group) for o in overrides if not o.is_sweep_override())
        sys.argv.append(f"hydra.job.config.override_dirname.exclude_keys=[{shared}]")


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def job(task: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """Checks the configuration of one Hydra job, and runs the job in its own directory.

    A sweep has many jobs. A job that fails does not stop the others.
    """

    @wraps(task)
    def run(config: DictConfig) -> Any:
        hydra = HydraConfig.get()
        directory = Path(hydra.runtime.output_dir)
        try:
            check_config(config)
            _find_own_modules(config)
            for key in ("run_dir", "output_dir"):
                if key in config:  # in a sweep, the job's own directory
                    config[key] = str(_relative(directory))
            with read_write(hydra), _as_single_run(hydra):  # type: ignore[arg-type]
                hydra.run.dir = str(directory)  # Lightning passes it to the processes it starts
                return task(config)
        except Exception as error:
            if hydra.mode == RunMode.MULTIRUN:
                raise
            exit_with(error, str(hydra.job.config_name))
        finally:
            at_end_of_job.close()
            _remove_if_empty(directory)

    return run


def _find_own_modules(config: DictConfig) -> None:
    """Lets Python look for modules in the working directory, if the command names one by a target.

    The files there may be anyone's. Without such a target, none of them is imported, not even in
    the place of a library that is not installed. The configuration of the run that `resume=` names
    is not part of `config`.
    """
    names = {target.partition(".")[0] for _, target in targets_in(config)} - {""}
    if any(name not in sys.modules and find_spec(name) is None for name in names):
        sys.path.append(str(Path.cwd()))  # the last place


@contextmanager
def _as_single_run(hydra: HydraConf) -> Iterator[None]:
    """Makes a job of a sweep look like a single run, and restores the process afterwards.

    Lightning starts further processes with the arguments of this one, which are the whole sweep's.
    """
    if hydra.mode != RunMode.MULTIRUN:
        yield
        return
    arguments, environment = sys.argv, dict(os.environ)
    sys.argv = [sys.argv[0], *hydra.overrides.task, "hydra.mode=RUN"]
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
def locked(directory: Path) -> Iterator[None]:
    """Keeps other runs out of a run's directory. The first process of a run holds the lock."""
    from filelock import FileLock, Timeout  # slow to import

    lock = FileLock(directory / ".lock")  # the system releases it when this process dies
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(
            f"another process is training in {directory}. Wait for it to end, or give another "
            "run_dir."
        ) from error
    except (OSError, NotImplementedError) as error:  # some network file systems
        log.info(
            "note: %s cannot be locked (%s). Do not start a second run there.", directory, error
        )
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _relative(path: Path) -> Path:
    """Returns the path relative to the current directory if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _remove_if_empty(directory: Path) -> None:
    """Removes a directory that Hydra made and no job wrote to, and its empty parents."""
    path = _relative(directory)
    with suppress(OSError):  # such as an empty drive
        while path != Path() and path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            path = Path() if path.is_absolute() else path.parent


def _job_directory(*, _root_: DictConfig) -> str:
    """Returns the directory that a command writes into; `.` if it has none."""
    values = [_root_.get(name) for name in TABLE[Trait.OUTPUT]]
    return str(Path(next((v for v in values if v and v != "auto"), ".")).expanduser())


# base.yaml uses both
OmegaConf.register_new_resolver("job_directory", _job_directory, replace=True)
OmegaConf.register_new_resolver("overview", overview.overview, replace=True)
