import errno
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from taming.runtime.errors import MissingPathError, UserError
from taming.serialization import (
    DamagedCheckpointError,
    PretrainedModel,
    SavedModel,
    checkpoint_entry,
    find_model,
    is_only_a_model,
    load_model_directory,
    load_saved_model,
    load_training_checkpoint,
    read_training_checkpoint,
    replace_model,
    save_model_directory,
    saved_model,
)


def example(value: float = 1.0) -> SavedModel:
    shared = torch.full((2, 3), value)
    part = SavedModel("gpt", {"width": 8}, {"weight": torch.arange(4)})
    return SavedModel(
        "vqgan", {"sizes": [1, 2]}, {"a": shared, "b": shared.view(-1)}, {"transformer": part}
    )


def equal(first: SavedModel, second: SavedModel) -> bool:
    return first.fingerprint() == second.fingerprint()


def test_a_saved_model_is_loaded_unchanged(tmp_path: Path) -> None:
    path = save_model_directory(example(), tmp_path / "deep" / "model")
    files = {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}
    names = {"config.json", "model.safetensors"}
    assert files == names | {f"transformer/{name}" for name in names}
    expected = {"kind": "vqgan", "format_version": 2, "sizes": [1, 2]}
    assert json.loads((path / "config.json").read_text()) == expected
    assert equal(load_model_directory(path), example())  # though `a` and `b` shared their storage


def test_saving_again_replaces_the_model_only(tmp_path: Path) -> None:
    path = save_model_directory(example(1.0), tmp_path / "model")
    (path / "README.md").write_text("mine")
    (path / ".git").mkdir()
    (tmp_path / "link").symlink_to(path)
    smaller = example(2.0)
    smaller.parts = {}
    assert save_model_directory(smaller, tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    assert equal(load_model_directory(path), smaller)
    files = {child.name: child for child in path.iterdir()}
    assert files.keys() == {"README.md", ".git", "config.json", "model.safetensors"}
    assert {child.name for child in tmp_path.iterdir()} == {"model", "link"}
    modes = {files[name].stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1  # who may read the config may read the weights


def test_other_files_in_a_model_and_its_parts_stay(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    save_model_directory(example(1.0), elsewhere)
    save_model_directory(example(1.0), path)
    (path / "transformer" / "notes.txt").write_text("mine")
    (path / "linked").symlink_to(elsewhere)  # a part
    (path / "other").mkdir()
    (path / "other" / "config.json").write_text('{"model_type": "gpt2"}')  # no part
    smaller = example(2.0)
    smaller.parts = {}
    (path / "config.json").unlink()  # as a killed process may leave it
    replace_model(smaller, path)
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    notes = {"transformer/notes.txt", "other/config.json"}
    assert names == {"config.json", "model.safetensors"} | notes
    assert not (path / "linked").exists() and equal(load_model_directory(elsewhere), example(1.0))
    replace_model(example(3.0), path)
    assert equal(load_model_directory(path / "transformer"), example().parts["transformer"])


def test_what_a_killed_process_leaves_is_only_a_model(tmp_path: Path) -> None:
    path = save_model_directory(example(), tmp_path / "x" / "new").parent
    (tmp_path / "link").symlink_to(path)
    assert is_only_a_model(path) and not is_only_a_model(tmp_path / "link")
    (path / "new" / "transformer" / "notes.txt").touch()
    assert not is_only_a_model(path)


def test_a_failed_write_keeps_the_earlier_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_model_directory(example(1.0), tmp_path / "model")

    def full(*args: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(saved_model, "save_file", full)
    with pytest.raises(OSError, match=r"model\.safetensors: .*No space left on device"):
        save_model_directory(example(2.0), path)
    assert equal(load_model_directory(path), example(1.0))
    assert [child.name for child in tmp_path.iterdir()] == ["model"]


def test_files_that_are_not_a_model_stay(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"precious")
    for path in (tmp_path, tmp_path / "photo.png"):
        with pytest.raises(UserError, match="exists and is not a model directory"):
            save_model_directory(example(), path)
    assert (tmp_path / "photo.png").read_bytes() == b"precious"
    (tmp_path / "empty").mkdir()
    path = save_model_directory(example(), tmp_path / "empty")
    assert equal(load_model_directory(path), example())


def test_a_model_cannot_contain_itself(tmp_path: Path) -> None:
    path = save_model_directory(example(), tmp_path / "model")
    (path / "part").symlink_to(path)
    with pytest.raises(UserError, match=r"part is a link to a model that contains it"):
        load_model_directory(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "does not describe a model"),
        ('{"model_type": "gpt2"}', "does not describe a model"),
        ('{"kind": "vqgan", "format_version": 1}', "format version 1, but .* reads version 2"),
    ],
)
def test_other_configs_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=rf"{tmp_path}/config\.json .*{message}"):
        load_model_directory(tmp_path)


def test_different_models_have_different_fingerprints() -> None:
    reference = example().fingerprint()
    assert example().fingerprint() == reference
    changes: list[SavedModel] = [example(1.0001), example(), example(), example(), example()]
    changes[1].config["sizes"] = [1, 3]
    changes[2].kind = "gpt"
    changes[3].parts["transformer"].state["weight"][0] = 9
    changes[4].state["a"] = changes[4].state["a"].view(3, 2)
    assert len({reference, *(model.fingerprint() for model in changes)}) == 6


def checkpoint(path: Path, value: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": checkpoint_entry(example(value)), "step": 3}, path)
    return path


def test_a_checkpoint_contains_its_model(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "last.ckpt")
    assert equal(load_training_checkpoint(path), example())
    torch.save({"model": {**checkpoint_entry(example()), "format_version": 3}}, path)
    with pytest.raises(UserError, match=r"last\.ckpt has format version 3"):
        load_saved_model(path)


@pytest.mark.parametrize(
    ("error", "damaged"),
    [
        (OSError(errno.EIO, "Input/output error"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (MemoryError(), False),
        (OSError(errno.EINVAL, "Invalid argument"), True),  # an offset in a damaged file
        (pickle.UnpicklingError("odd"), True),
    ],
)
def test_disk_errors_are_not_damaged_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, damaged: bool
) -> None:
    def fails(*args: Any, **settings: Any) -> None:
        raise error

    path = checkpoint(tmp_path / "last.ckpt")
    monkeypatch.setattr(torch, "load", fails)
    for read in (read_training_checkpoint, partial(read_training_checkpoint, check=True)):
        with pytest.raises(UserError, match=r"last\.ckpt cannot be read") as raised:
            read(path)
        assert isinstance(raised.value, DamagedCheckpointError) == damaged


class Dangerous:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    proof, path = tmp_path / "executed", tmp_path / "evil.ckpt"
    content = {"model": checkpoint_entry(example()), "step": 1, "callbacks": Dangerous(proof)}
    torch.save(content, path)
    for data in (path.read_bytes(), pickle.dumps(content["callbacks"])):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"evil\.ckpt cannot be read"):
            load_saved_model(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"weight": torch.ones(2)}},
        {"state_dict": {"weight": torch.ones(2)}, "callbacks": {Path: Dangerous(Path("x"))}},
    ],
)
def test_checkpoints_of_other_programs_need_an_import(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "foreign.ckpt"
    torch.save(content, path)
    with pytest.raises(UserError, match=r"foreign\.ckpt .* of another program") as caught:
        load_saved_model(path)
    assert "with scripts/import_checkpoint.py first" in str(caught.value)
    assert "trust" not in str(caught.value)  # torch's message explains how to run code in the file


@pytest.mark.parametrize("fraction", [0.01, 0.99])
@pytest.mark.parametrize("name", ["cut.ckpt", "model/model.safetensors"])
def test_truncated_files_are_refused(tmp_path: Path, name: str, fraction: float) -> None:
    save_model_directory(example(), tmp_path / "model")
    checkpoint(tmp_path / "cut.ckpt")
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(UserError, match=rf"{name} .*incomplete"):
        load_saved_model(tmp_path / name.partition("/")[0])


def test_a_run_directory_means_its_model_then_its_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    best = checkpoint(run / "checkpoints" / "best.ckpt", 2.0)
    assert find_model(run) == best
    last = checkpoint(run / "checkpoints" / "last.ckpt", 1.0)
    assert find_model(run) == find_model(last) == last
    assert load_saved_model(run).state["a"][0, 0] == 1.0
    model = save_model_directory(example(3.0), run / "model")
    assert find_model(run) == find_model(str(model)) == model
    assert load_saved_model(run).state["a"][0, 0] == 3.0


def test_a_file_of_a_model_directory_means_the_directory(tmp_path: Path) -> None:
    model = save_model_directory(example(), tmp_path / "run" / "model")
    for name in ("model.safetensors", "config.json"):
        assert find_model(model / name) == model
    assert equal(load_saved_model(model / "model.safetensors"), example())
    assert find_model(model / "transformer" / "model.safetensors") == model / "transformer"
    (model / "config.json").unlink()
    with pytest.raises(UserError, match="model is neither a model directory"):
        find_model(model / "model.safetensors")


def test_a_missing_path_is_not_a_hub_name(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", Path("owner/name"), tmp_path / "last.ckpt"):
        with pytest.raises(MissingPathError, match=f"{path.name} does not exist") as caught:
            find_model(path)
        assert "hf:owner/name" in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(UserError, match=r"neither a model directory .* nor a run directory"):
        find_model(tmp_path)


def test_hub_names_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    path = save_model_directory(example(), tmp_path / "snapshot")
    downloads = []

    def download(name: str, **kwargs: Any) -> str:
        downloads.append((name, kwargs["revision"]))
        if name == "owner/missing":
            raise ConnectionError("no route to host\nand more")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert equal(load_saved_model("hf:owner/name"), example())
    load_saved_model("hf:owner/name@c0ffee")
    with pytest.raises(UserError, match=r"hf:owner/missing could not .* cannot be reached"):
        load_saved_model("hf:owner/missing")
    assert downloads == [("owner/name", None), ("owner/name", "c0ffee"), ("owner/missing", None)]


CHECKPOINT = "run/checkpoints/last.ckpt"


class Scale(PretrainedModel):
    kind = "scale"
    part = "tokenizer"

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.config = {"width": width}
        self.weight = nn.Parameter(torch.randn(width))


def test_a_model_is_loaded_in_eval_mode(tmp_path: Path) -> None:
    model = Scale(3)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    torch.save({"model": checkpoint_entry(model.to_saved())}, tmp_path / CHECKPOINT)
    generator = SavedModel("generator", {}, parts={"tokenizer": model.to_saved()})
    save_model_directory(generator, tmp_path / "generator")
    for path in ("model", "run", CHECKPOINT, "generator"):
        loaded = Scale.from_pretrained(tmp_path / path)
        assert torch.equal(loaded.weight, model.weight)
        assert not loaded.training


def test_other_kinds_of_models_are_refused(tmp_path: Path) -> None:
    save_model_directory(example(), tmp_path / "vqgan")
    save_model_directory(SavedModel("generator", {}), tmp_path / "generator")
    for name in ("vqgan", "generator"):
        with pytest.raises(UserError, match=f"{name} holds a {name}, but a scale is needed"):
            Scale.from_pretrained(tmp_path / name)


@pytest.mark.parametrize(
    ("config", "state", "message"),
    [
        ({"width": 2}, {}, r"weights of the scale in .*model are wrong.* Missing key"),
        ({"width": 3}, {"weight": torch.ones(2)}, "size mismatch"),
        ({"widht": 2}, {"weight": torch.ones(2)}, "widht"),
    ],
)
def test_config_and_weights_must_match(
    tmp_path: Path, config: dict[str, Any], state: dict[str, torch.Tensor], message: str
) -> None:
    save_model_directory(SavedModel("scale", config, state), tmp_path / "model")
    with pytest.raises(UserError, match=message):
        Scale.from_pretrained(tmp_path / "model")
