import json

import pytest
import torch

from taming.conditioning import ClassLabel, Unconditional, conditioning_from_config
from taming.errors import UserError


def test_unconditional_has_one_start_id() -> None:
    conditioning = Unconditional()
    assert conditioning.num_prefix_ids == 1 and conditioning.prefix_length == 1
    prefix = conditioning.prefix(None, 3)
    assert prefix.tolist() == [[0], [0], [0]] and prefix.dtype == torch.int64
    assert torch.equal(conditioning.drop(prefix), prefix)
    with pytest.raises(UserError, match="trained without conditions"):
        conditioning.prefix(torch.tensor([1, 2, 3]), 3)
    with pytest.raises(UserError, match="no classes"):
        conditioning.with_class_names(["cat"])


def test_labels_become_the_prefix() -> None:
    conditioning = ClassLabel(4)
    assert conditioning.num_prefix_ids == 5
    prefix = conditioning.prefix(torch.tensor([3, 0], dtype=torch.int32), 2)
    assert prefix.tolist() == [[3], [0]] and prefix.dtype == torch.int64


def test_nothing_is_asked_for_with_the_last_id_where_that_was_learned() -> None:
    assert ClassLabel(4, dropout=0.1).prefix(None, 2).tolist() == [[4], [4]]
    with pytest.raises(UserError, match="give a class label for each image, 0 to 3"):
        ClassLabel(4).prefix(None, 2)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_range_are_named_with_the_classes(label: int) -> None:
    conditioning = ClassLabel(3, dropout=0.1).with_class_names(["cat", "dog", "owl"])
    with pytest.raises(UserError, match=rf"label {label} .* 0 to 2 \(0 cat, 1 dog, 2 owl\)"):
        conditioning.prefix(torch.tensor([0, label]), 2)


def test_a_long_list_of_classes_is_cut() -> None:
    conditioning = ClassLabel(1000, class_names=[f"class{i}" for i in range(1000)])
    with pytest.raises(UserError, match=r"0 to 999 \(0 class0, .*19 class19, …\)"):
        conditioning.prefix(torch.tensor([1000]), 1)


@pytest.mark.parametrize(
    "condition", [torch.tensor([0, 1, 2]), torch.tensor([[0], [1]]), torch.tensor([0.0, 1.0])]
)
def test_other_tensors_are_refused(condition: torch.Tensor) -> None:
    with pytest.raises(UserError, match="2 integer class labels"):
        ClassLabel(4).prefix(condition, 2)


def test_dropout_replaces_the_stated_share() -> None:
    conditioning = ClassLabel(4, dropout=0.25)
    prefix = conditioning.prefix(torch.randint(4, (4000,)), 4000)
    dropped = conditioning.drop(prefix, torch.Generator().manual_seed(0))
    replaced = dropped != prefix
    assert (dropped[replaced] == 4).all()
    assert abs(replaced.float().mean().item() - 0.25) < 0.02
    assert torch.equal(dropped, conditioning.drop(prefix, torch.Generator().manual_seed(0)))
    assert torch.equal(ClassLabel(4).drop(prefix), prefix)


@pytest.mark.parametrize("conditioning", [Unconditional(), ClassLabel(2, 0.1, ["cat", "dog"])])
def test_config_round_trip(conditioning) -> None:
    config = json.loads(json.dumps(conditioning.config()))
    again = conditioning_from_config(config)
    assert type(again) is type(conditioning) and again.config() == conditioning.config()
    assert again.class_names == conditioning.class_names


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UserError, match="'depth' is not known; there are unconditional"):
        conditioning_from_config({"kind": "depth"})
    with pytest.raises(UserError, match=r"wrong: .*'classes'"):
        conditioning_from_config({"kind": "class_label", "classes": 3})
    with pytest.raises(UserError, match="2 class names for 3 classes"):
        ClassLabel(3, class_names=["cat", "dog"])
    with pytest.raises(UserError, match="at least 1 class"):
        ClassLabel(0)
    with pytest.raises(UserError, match=r"label dropout is 1\.5"):
        ClassLabel(3, dropout=1.5)
