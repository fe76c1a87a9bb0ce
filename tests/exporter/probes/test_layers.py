"""Parameters are folded to a bounded number of layers, and nothing is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.probes.layers import OTHER, Layers, append_layers, choose_depth, combine, fold, path_of
from trainswitch.recording.records import Kind
from trainswitch.recording.ring import StepRing


def transformer(blocks: int) -> torch.nn.Module:
    """A model in the shape of a transformer, a few parameters big."""
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(4, 2)
    model.layers = torch.nn.ModuleList(
        torch.nn.ModuleDict({"attention": torch.nn.Linear(2, 2), "mlp": torch.nn.Linear(2, 4)})
        for _ in range(blocks)
    )
    model.norm = torch.nn.LayerNorm(2)
    return model


def test_a_small_model_has_a_series_for_each_module() -> None:
    """The deepest cut that fits is taken."""
    layers = Layers(transformer(2), 32)
    assert layers.names == (
        "embedding",
        "layers.0.attention",
        "layers.0.mlp",
        "layers.1.attention",
        "layers.1.mlp",
        "norm",
        OTHER,
    )


def test_a_larger_model_has_a_series_for_each_block() -> None:
    """Where the modules are too many, the blocks are told apart."""
    names = Layers(transformer(20), 32).names
    assert names == ("embedding", *(f"layers.{number}" for number in range(20)), "norm", OTHER)


def test_more_blocks_than_series_leave_the_rest_together() -> None:
    """The largest layers have a series each, the remainder shares one; blocks are never all in one."""
    model = transformer(80)
    layers = Layers(model, 32)
    assert len(layers.names) == 32
    assert layers.names[0] == "layers.0"
    assert layers.names[30:] == ("layers.30", OTHER)
    assert layers.index(model.layers[79].parameters()) == [31] * 4  # type: ignore[union-attr, index]
    assert layers.index(model.norm.parameters()) == [31, 31]  # type: ignore[union-attr]


def test_a_parameter_that_the_model_did_not_have_is_in_the_remainder() -> None:
    """A parameter added later is counted, without a series of its own."""
    layers = Layers(transformer(1), 32)
    assert layers.index([torch.nn.Parameter(torch.ones(1))]) == [len(layers.names) - 1]


def test_wrappers_are_no_part_of_a_name() -> None:
    """DDP, FSDP and compilation do not rename the layers."""
    assert path_of("module._orig_mod.blocks.0._checkpoint_wrapped_module.mlp") == ("blocks", "0", "mlp")
    assert path_of("") == ("(root)",)


def test_a_parameter_of_the_model_itself_is_a_layer() -> None:
    """A class token has no module below the root, and goes by its own name."""
    model = torch.nn.Module()
    model.token = torch.nn.Parameter(torch.ones(3))
    assert Layers(model, 8).names == ("token", OTHER)


def test_activations_share_the_names_of_the_layers_they_are_in() -> None:
    """Both are cut at the same depth."""
    blocks = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(3)]
    layers = Layers(torch.nn.ModuleList(blocks), 3)
    assert layers.names == ("0", "1", "2", OTHER)
    assert layers.activation_names == ("0", "1", "2", OTHER)
    assert [index for _, index in layers.activations] == [0, 1, 2]


names = st.lists(st.sampled_from("abc012"), min_size=1, max_size=4).map(tuple)


@given(
    modules=st.lists(st.tuples(names, st.integers(0, 100), st.floats(0, 1e30)), min_size=1, max_size=40),
    max_series=st.integers(2, 10),
)
def test_the_squares_of_the_layers_sum_to_those_of_the_parameters(
    modules: list[tuple[tuple[str, ...], int, float]], max_series: int
) -> None:
    """However it is folded, there are at most so many series, and the sum of squares is exact."""
    paths = [path for path, _, _ in modules]
    sizes = [size for _, size, _ in modules]
    norms = [norm for _, _, norm in modules]
    folded = fold(paths, sizes, choose_depth(paths, sizes, max_series), max_series)
    values = combine(norms, folded.index, len(folded.names))
    assert sum(value is not None for value in values) <= max_series
    total = math.fsum(value * value for value in values if value is not None)
    assert total == pytest.approx(math.fsum(norm * norm for norm in norms), rel=1e-12)


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=50))
def test_values_travel_through_the_ring_as_they_are(values: list[float | None]) -> None:
    """Records carry index, values and what is absent; NaN and absent are two things."""
    ring = StepRing.private({}, 64)
    append_layers(ring.append, 7, "grad_norm", values)
    found: dict[int, float | None] = {}
    for record in ring.reader().drain():
        assert (record.kind, record.step, record.label) == (Kind.LAYERS, 7, "grad_norm")
        for position in range(1, 16):
            value: Any = record.get(position)
            if value is not None:
                found[int(record.values[0]) + position - 1] = value
    expected = {index: value for index, value in enumerate(values) if value is not None}
    assert repr(found) == repr(expected)
