import errno
import logging
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from taming.data.lock import exclusive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")


def test_one_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Eight that come at once: never are two inside, though the first removes the file."""
    inside, most, entered = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, entered
        with exclusive(tmp_path / "a.lock", "the thing"):
            inside += 1
            entered += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    with caplog.at_level(logging.INFO):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (most, entered) == (1, 8)
    assert "another process is at work on the thing: waiting" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_an_error_gives_the_lock_up(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), exclusive(tmp_path / "a.lock", "it"):
            assert (tmp_path / "a.lock").exists()
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_process_that_was_killed_locks_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "a.lock").touch()
    with exclusive(tmp_path / "a.lock", "it"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_locks_has_no_file_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taming.data.lock.sys", SimpleNamespace(platform="win32"))
    with exclusive(tmp_path / "a.lock", "it"):
        assert list(tmp_path.iterdir()) == []


def test_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with exclusive(tmp_path / "a.lock", "the thing"):
        pass
    assert "let one process alone work on the thing" in caplog.text
    monkeypatch.setattr("taming.data.lock.UNSUPPORTED", ())
    with pytest.raises(OSError, match="No locks"), exclusive(tmp_path / "a.lock", "the thing"):
        pass
