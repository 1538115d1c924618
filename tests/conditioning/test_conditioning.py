import json
from typing import Any

import pytest
import torch

from taming.conditioning import (
    ClassLabel,
    Conditioning,
    ImageCondition,
    Prompt,
    Unconditional,
    conditioning_from_config,
)
from taming.runtime.errors import UserError

CLASSES = ClassLabel(3, class_names=["cat", "dog", "owl"])
IMAGE = ImageCondition(5, (2, 3))


def test_unconditional_has_one_start_id() -> None:
    conditioning = Unconditional()
    assert (conditioning.num_prefix_ids, conditioning.prefix_length) == (1, 1)
    prompt = conditioning.prompt(None, 3)
    assert prompt.prefix.tolist() == [[0], [0], [0]] and prompt.prefix.dtype == torch.int64
    assert prompt.context is None and conditioning.can_do_without
    assert conditioning.drop(prompt) is prompt


def test_labels_become_the_prefix_and_the_last_id_is_no_class() -> None:
    conditioning = ClassLabel(4, dropout=0.1)
    assert conditioning.num_prefix_ids == 5
    prefix = conditioning.prompt(torch.tensor([3, 0], dtype=torch.int32), 2).prefix
    assert prefix.tolist() == [[3], [0]] and prefix.dtype == torch.int64
    assert conditioning.prompt(None, 2).prefix.tolist() == [[4], [4]]


def test_class_names_become_labels() -> None:
    for condition in (["owl", "dog"], [2, 1], torch.tensor([2, 1])):
        assert CLASSES.check(condition, 2).tolist() == [2, 1]
    assert CLASSES.check("dog", 2).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("conditioning", "condition", "message"),
    [
        (Unconditional(), torch.tensor([1, 2]), "trained without conditions"),
        (CLASSES, None, "condition_dropout.* Give a class label from 0 to 2 .* each of 2 images"),
        (CLASSES, torch.tensor([0, 3]), r"class label 3 .* 0 to 2 \(0 cat, 1 dog, 2 owl\)"),
        (CLASSES, torch.tensor([0, -1]), "class label -1"),
        (CLASSES, ["owl", "cow"], "class label 'cow'"),
        (CLASSES, ["owl"], r"shape \(1,\)\. Give a class label"),
        (CLASSES, 1, r"condition is 1\. Give a class label"),
        (CLASSES, torch.tensor([[0], [1]]), r"shape \(2, 1\)"),
        (CLASSES, torch.tensor([0.0, 1.0]), "float32"),
        (IMAGE, None, "condition_dropout.* Give a float condition image"),
        (IMAGE, "owl", r"condition is 'owl'\. Give a float condition image"),
        (IMAGE, torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "condition is torch.uint8"),
        (IMAGE, torch.zeros(3, 2, 3, dtype=torch.int64), r"shape \(3, 2, 3\)"),
        (IMAGE, torch.arange(12).view(2, 2, 3) % 6, "tokens are 0 to 5, .* 0 to 4"),
    ],
)
def test_conditions_that_do_not_fit(
    conditioning: Conditioning, condition: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        conditioning.check(condition, 2)


def test_a_message_shortens_a_long_list_of_classes() -> None:
    conditioning = ClassLabel(1000, class_names=[f"class{i}" for i in range(1000)])
    with pytest.raises(UserError, match=r"0 to 999 \(0 class0, .*19 class19, and 980 more\)"):
        conditioning.check(torch.tensor([1000]), 1)


@pytest.mark.parametrize(
    "conditioning",
    [
        Unconditional(),
        ClassLabel(2, 0.1, ["cat", "dog"]),
        ImageCondition(5, (2, 3), 0.1, False, [[0, 0, 255]] * 5, unlabelled=0, unlabelled_class=3),
        ImageCondition(5, (2, 3), as_context=True),
    ],
)
def test_config_round_trip(conditioning: Conditioning) -> None:
    loaded = conditioning_from_config(json.loads(json.dumps(conditioning.config())))
    assert type(loaded) is type(conditioning) and loaded.config() == conditioning.config()
    assert loaded.class_names == conditioning.class_names


def test_a_config_without_the_settings_of_label_maps_has_their_defaults() -> None:
    config = ImageCondition(5, (2, 3), unlabelled=0, unlabelled_class=3).config()
    del config["unlabelled"], config["unlabelled_class"]
    loaded = conditioning_from_config(config)
    assert isinstance(loaded, ImageCondition)
    assert (loaded.unlabelled, loaded.unlabelled_class) == (255, None)


def test_wrong_settings() -> None:
    with pytest.raises(UserError, match="'depth' is not one of"):
        conditioning_from_config({"kind": "depth"})
    for settings in ({"classes": 3}, {"num_classes": 0}, {"num_classes": 3, "dropout": None}):
        with pytest.raises(UserError, match="'class_label' is wrong"):
            conditioning_from_config({"kind": "class_label", **settings})
    with pytest.raises(ValueError, match="less than 1"):
        ImageCondition(5, (2, 3), dropout=1.5)


@pytest.mark.parametrize("as_context", [False, True])
def test_an_image_becomes_the_prefix_or_the_context_after_a_start_token(as_context: bool) -> None:
    conditioning = ImageCondition(5, (2, 3), dropout=0.1, as_context=as_context)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0], [4, 4, 4, 4, 4, 4]])
    prompt, no_condition = conditioning.prompt(tokens, 2), conditioning.prompt(None, 2)
    config = conditioning.transformer_config((4, 6))
    if as_context:
        assert prompt.prefix.tolist() == no_condition.prefix.tolist() == [[0], [0]]
        assert torch.equal(prompt.context, tokens)
        assert (no_condition.context == 5).all()
        expected = {"num_prefix_ids": 1, "prefix_length": 1, "context_length": 24}
        expected |= {"num_context_ids": 6, "context_grid_size": (2, 3)}
    else:
        assert prompt.context is None and conditioning.num_context_ids == 0
        assert torch.equal(prompt.prefix, tokens)
        assert (no_condition.prefix == 5).all()
        expected = {"num_prefix_ids": 6, "prefix_length": 6, "context_length": 29}
        expected |= {"prefix_grid_size": (2, 3)}
    assert config == {**expected, "grid_size": (4, 6)}


@pytest.mark.parametrize(
    "conditioning",
    [
        ClassLabel(4, dropout=0.25),
        ImageCondition(5, (2, 3), dropout=0.25),
        ImageCondition(5, (2, 3), dropout=0.25, as_context=True),
    ],
)
def test_dropout_replaces_whole_conditions_with_its_probability(conditioning: Conditioning) -> None:
    shape = (4000, 6) if conditioning.takes_images else (4000,)
    prompt = conditioning.prompt(torch.randint(4, shape), 4000)
    dropped = conditioning.drop(prompt, torch.Generator().manual_seed(0))
    ids, before = (p.prefix if p.context is None else p.context for p in (dropped, prompt))
    is_dropped = ids == ids.max()  # the id of "no condition"
    assert (is_dropped.all(1) == is_dropped.any(1)).all()
    assert abs(is_dropped[:, 0].float().mean().item() - 0.25) < 0.02
    assert torch.equal(ids[~is_dropped], before[~is_dropped])
    assert ClassLabel(4).drop(prompt) is prompt


def test_prompts_concatenate_and_slice_by_sequence() -> None:
    prompt = Prompt(torch.tensor([[1], [2]]), torch.tensor([[3, 4], [5, 6]]))
    both = prompt.concatenate(Prompt(torch.tensor([[7]]), torch.tensor([[8, 9]])))
    assert both.prefix.tolist() == [[1], [2], [7]]
    assert both.context is not None and both.context.tolist() == [[3, 4], [5, 6], [8, 9]]
    assert both.rows(slice(1)).prefix.tolist() == [[1]]
