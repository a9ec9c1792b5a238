"""Concept heads: hidden states as sums of concepts and a residual, restated with plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from daguerre.errors import CheckpointError
from daguerre.models.core.concept_heads import CLAMP, ConceptHeads, largest
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import ConceptShape

WIDTH = 12
SHAPE = ConceptShape(known=9, discovered=14, rank=5, kept_known=3, kept_discovered=4, spare_known=2, spare_discovered=3)


def made(shape: ConceptShape = SHAPE, dtype: torch.dtype = torch.float32) -> ConceptHeads:
    heads = ConceptHeads(WIDTH, shape).requires_grad_(False)
    generator = torch.Generator().manual_seed(4)
    for weight in heads.parameters():
        weight.normal_(0, 0.7, generator=generator)
    return heads.to(dtype)


def rows(num: int = 6) -> torch.Tensor:
    return torch.randn(num, WIDTH, generator=torch.Generator().manual_seed(5))


def dot(one: list[float], other: list[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def kept(logits: list[float], num: int) -> dict[int, float]:
    """The places of the `num` largest logits, the first of equals, and their weights."""
    clamped = [min(max(z, -CLAMP), CLAMP) for z in logits]
    order = sorted(range(len(clamped)), key=lambda place: (-clamped[place], place))[:num]
    return {place: 1 / (1 + math.exp(-clamped[place])) for place in order}


def restated(heads: ConceptHeads, h: list[float]) -> tuple[dict[int, float], list[float], list[float]]:
    """The weights of all kept concepts of a hidden state, and its known and discovered part."""
    shape, w = heads.shape, {name: weight.double().tolist() for name, weight in heads.state_dict().items()}
    logits = [
        dot(w["known_predictor.weight"][c], h) + (w["known_predictor.bias"][c] if shape.bias else 0.0)
        for c in range(shape.known)
    ]
    inner = [dot(row, h) for row in w["discovered_down.weight"]]
    found_logits = [
        dot(w["discovered_up.weight"][c], inner) + (w["discovered_up.bias"][c] if shape.bias else 0.0)
        for c in range(shape.discovered)
    ]
    known, discovered, weights = [0.0] * WIDTH, [0.0] * WIDTH, dict[int, float]()
    for place, weight in kept(logits, shape.kept_known).items():
        weights[place] = weight
        known = [x + weight * k for x, k in zip(known, w["known_embedding.weight"][place], strict=True)]
    for place, weight in kept(found_logits, shape.kept_discovered).items():
        weights[shape.known + place] = weight
        vector = [dot(row, w["discovered_coefficients.weight"][place]) for row in w["discovered_basis.weight"]]
        discovered = [x + weight * v for x, v in zip(discovered, vector, strict=True)]
    return weights, known, discovered


@pytest.mark.parametrize("bias", [True, False])
def test_a_hidden_state_is_the_sum_of_its_concepts_and_a_residual_as_plain_loops_have_it(bias: bool) -> None:
    heads = made(ConceptShape(**(vars(SHAPE) | {"bias": bias})))
    h = rows()
    found, all_weights = heads.decompose(h), heads.weights(h)
    for row in range(len(h)):
        weights, known, discovered = restated(heads, h[row].double().tolist())
        ids = found.known_ids[row].tolist() + found.discovered_ids[row].tolist()
        numbers = found.known_weights[row].tolist() + found.discovered_weights[row].tolist()
        assert ids == sorted(weights)
        assert numbers == pytest.approx([weights[one] for one in ids], rel=1e-5)
        dense = [weights.get(concept, 0.0) for concept in range(SHAPE.known + SHAPE.discovered)]
        assert all_weights[row].tolist() == pytest.approx(dense, rel=1e-5)
        assert found.known[row].tolist() == pytest.approx(known, abs=1e-5)
        assert found.discovered[row].tolist() == pytest.approx(discovered, abs=1e-5)
        rest = [x - k - d for x, k, d in zip(h[row].double().tolist(), known, discovered, strict=True)]
        assert found.residual[row].tolist() == pytest.approx(rest, abs=1e-5)


def test_the_parts_add_up_to_the_hidden_state_whatever_the_type_of_the_weights() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        h = rows()
        found = made(dtype=dtype).decompose(h.to(dtype))
        total = found.known + found.discovered + found.residual
        assert total.dtype == torch.float32
        assert torch.allclose(total, h.to(dtype).float(), atol=1e-6)


def test_sums_of_all_weights_are_the_parts_of_a_decomposition() -> None:
    heads, h = made(), rows()
    found, weights = heads.decompose(h), heads.weights(h)
    assert torch.allclose(heads.known_sum(weights[:, : SHAPE.known]), found.known, atol=1e-5)
    assert torch.allclose(heads.discovered_sum(weights[:, SHAPE.known :]), found.discovered, atol=1e-5)
    vectors = heads.vectors(torch.arange(SHAPE.known + SHAPE.discovered))
    assert torch.allclose(weights @ vectors, found.known + found.discovered, atol=1e-5)


def test_of_equal_logits_the_first_are_kept() -> None:
    heads = made()
    heads.known_predictor.weight.zero_()
    heads.known_predictor.bias.zero_()
    heads.known_predictor.bias[5] = 1.0
    heads.discovered_up.weight.zero_()
    heads.discovered_up.bias.fill_(2 * CLAMP)  # all are clamped
    heads.discovered_up.bias[1] = 0.0
    found = heads.decompose(rows())
    assert found.known_ids.tolist() == [[0, 1, 5]] * 6
    assert (found.discovered_ids - SHAPE.known).tolist() == [[0, 2, 3, 4]] * 6
    assert (heads.weights(rows()) > 0).nonzero()[:7, 1].tolist() == [0, 1, 5, 9, 11, 12, 13]


def test_logits_that_differ_are_ranked_although_their_weights_are_the_same_number() -> None:
    """Two weights near 1 may round to one float32."""
    logits = torch.tensor([[14.9, 14.95, 0.0]])
    assert logits.sigmoid()[0, 0] == logits.sigmoid()[0, 1]
    heads = made(ConceptShape(known=3, discovered=1, rank=1, kept_known=1, kept_discovered=1))
    heads.known_predictor.weight.zero_()
    heads.known_predictor.bias.copy_(logits[0])
    assert heads.decompose(rows(1)).known_ids.tolist() == [[1]]
    assert heads.weights(rows(1))[0, :3].tolist() == [0.0, pytest.approx(1.0), 0.0]


def test_spare_rows_of_a_published_checkpoint_are_no_concepts() -> None:
    heads, h = made(), rows()
    before = heads.weights(h)
    heads.known_predictor.bias[SHAPE.known :] = 100.0
    heads.discovered_up.bias[SHAPE.discovered :] = 100.0
    assert torch.equal(heads.weights(h), before)
    assert before.shape[1] == SHAPE.known + SHAPE.discovered


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_come_in_the_order_of_their_places_and_of_equals_the_first(dtype: torch.dtype) -> None:
    given = torch.tensor([[1.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 1.0, 1.0]], dtype=dtype)
    places, values = largest(given, 2)
    assert places.tolist() == [[1, 3], [0, 1], [0, 1]]
    assert values.tolist() == [[3.0, 3.0], [0.0, 0.0], [2.0, 1.0]]
    assert largest(given, 4)[0].tolist() == [[0, 1, 2, 3]] * 3


def test_the_largest_of_many_random_rows_are_those_of_a_stable_sort() -> None:
    """With few values, so that most rows have equals at the edge."""
    given = torch.randint(0, 6, (200, 40), generator=torch.Generator().manual_seed(0)).float()
    places, values = largest(given, 7)
    assert torch.equal(places, given.argsort(dim=-1, descending=True, stable=True)[:, :7].sort(-1).values)
    assert torch.equal(values, given.gather(1, places))


def test_a_shape_that_is_none_is_an_error_in_one_line(subtests: pytest.Subtests) -> None:
    for wrong in [{"known": 0}, {"rank": -1}, {"kept_known": 10}, {"spare_known": -1}]:
        with subtests.test(**wrong), pytest.raises(CheckpointError, match="concept"):
            ConceptShape(**({"known": 9, "discovered": 14, "rank": 5, "kept_known": 3, "kept_discovered": 4} | wrong))


def test_a_config_keeps_the_shape_of_its_heads() -> None:
    facts = {"vocab_size": 50, "width": 12, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "mlp_width": 16}
    ids = {"max_positions": 20, "mask_id": 3, "eos_id": 2, "bos_id": 1, "pad_id": 0}
    config = ModelConfig(**facts, **ids, concepts=SHAPE)
    assert ModelConfig.from_dict(config.to_dict()).concepts == SHAPE
    assert ModelConfig(**facts, **ids).concepts is None
