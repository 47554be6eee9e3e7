"""The local engine: what it records against `transformers` and the trainer, its stops, interruption and randomness."""

import numpy as np
import pytest
import torch

from rlsweep.model.context import Context
from rlsweep.model.load import load_model
from rlsweep.model.logprobs import pack, response_logprobs
from rlsweep.rollout.local import LocalEngine, _draw
from rlsweep.rollout.protocol import Group, Interruption, Request

PROMPTS = [(6, 29, 24, 39), (3, 3, 3, 5, 7, 20, 30, 39), (40, 39), (11,)]


def engine(folder: str, interruption: Interruption | None = None, eos: int = 1) -> LocalEngine:
    model, _ = load_model(folder)
    return LocalEngine(model, eos=eos, dtype="float32", head_dtype="float32", interruption=interruption)


def asked(count: int = 3, max_tokens: int = 15, temperature: float = 1.0) -> list[Request]:
    return [Request(i, p, count, 100 + i, temperature, max_tokens) for i, p in enumerate(PROMPTS)]


def sample(sampler: LocalEngine, requests: list[Request]) -> dict[int, Group]:
    sampler.submit(requests)
    return {group.id: group for group in sampler.collect(wait=True)}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_of_transformers_and_of_the_trainer(
    random_model_folder: str, temperature: float
) -> None:
    """Prompts of unequal length stand left-padded side by side; each rollout is checked alone, without any padding."""
    groups = sample(engine(random_model_folder), asked(temperature=temperature))
    model, _ = load_model(random_model_folder)
    prompts = [PROMPTS[i] for i, group in groups.items() for _ in group.rollouts]
    rollouts = [rollout for group in groups.values() for rollout in group.rollouts]
    assert len({len(r.tokens) for r in rollouts}) > 2
    packed = pack(prompts, [r.tokens for r in rollouts], "cpu")
    trainer, _ = response_logprobs(model, packed, temperature=temperature, dtype="float32", head_dtype="float32")
    for row, (prompt, rollout) in enumerate(zip(prompts, rollouts, strict=True)):
        ids = torch.tensor([[*prompt, *rollout.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
        reference = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]
        recorded = torch.tensor(rollout.logprobs)
        assert (recorded - reference).abs().max() < 1e-4
        assert (trainer[row, : len(rollout.tokens)] - reference).abs().max() < 1e-4


def test_a_rollout_depends_on_its_request_alone(random_model_folder: str) -> None:
    """The same request gives the same tokens alone, among others and in another order."""
    together = sample(engine(random_model_folder), asked())
    backwards = sample(engine(random_model_folder), asked()[::-1])
    alone = {r.id: sample(engine(random_model_folder), [r])[r.id] for r in asked()}
    for id_, group in together.items():
        for other in (backwards[id_], alone[id_]):
            assert [r.tokens for r in group.rollouts] == [r.tokens for r in other.rollouts]
    assert len({r.tokens for g in together.values() for r in g.rollouts}) > 8


@pytest.mark.parametrize("interruption", [None, Interruption((5, 9), (9,))], ids=["plain", "interrupted"])
def test_what_rollouts_have_in_common_is_computed_once(
    random_model_folder: str, interruption: Interruption | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold rollouts agree for a while. Each is drawn again alone, token by token, from the same random numbers; the
    engine reads one row for each text that differs, and none for a rollout that has ended."""
    rows: list[int] = []
    read = Context.read

    def counted(self: Context, ids: torch.Tensor) -> torch.Tensor:
        rows.append(len(ids))
        return read(self, ids)

    monkeypatch.setattr(Context, "read", counted)
    temperature, longest, at = 0.15, 10, 4
    # A prompt that is asked twice, with other random numbers, stays two requests.
    prompts = [*PROMPTS, PROMPTS[0]]
    requests = [
        Request(i, p, 6, 50 + i, temperature, longest, (at,) * 6 if interruption else ()) for i, p in enumerate(prompts)
    ]
    groups = sample(engine(random_model_folder, interruption, eos=33), requests)
    model, _ = load_model(random_model_folder)
    texts: list[set[tuple[int, tuple[int, ...]]]] = [set() for _ in range(longest)]
    for request in requests:
        noise = np.random.default_rng(request.seed).random((6, longest))
        for rollout, numbers in zip(groups[request.id].rollouts, noise, strict=True):
            said: list[int] = []
            for place, number in enumerate(numbers):
                if interruption and 9 not in said[:at] and at <= place < at + 2:
                    said.append(interruption.phrase[place - at])
                else:
                    with torch.no_grad():
                        logits = model(input_ids=torch.tensor([[*request.prompt, *said]])).logits[0, -1].double()
                    shares = torch.softmax(logits / temperature, -1).cumsum(-1)
                    said.append(int((shares <= number).sum()))
                if said[-1] == 33 or place == longest - 1:
                    break
                texts[place].add((request.id, tuple(said)))
            assert rollout.tokens == tuple(said)
    expected = [len(each) for each in texts if each]
    assert rows == expected and max(rows) < 30 and len(set(rows)) > 2


def test_one_text_ends_where_another_splits(random_model_folder: str) -> None:
    """As many texts go on as before, but not the same ones."""
    ends, splits = Request(0, PROMPTS[0], 2, 1, 1.0, 1), Request(1, PROMPTS[2], 2, 3, 1.0, 6)
    alone = sample(engine(random_model_folder), [splits])[1]
    assert alone.rollouts[0].tokens[0] != alone.rollouts[1].tokens[0]
    beside = sample(engine(random_model_folder), [ends, splits])[1]
    for one, other in zip(alone.rollouts, beside.rollouts, strict=True):
        assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_rollouts_stop_at_the_end_of_sequence_or_the_limit(random_model_folder: str) -> None:
    groups = sample(engine(random_model_folder, eos=33), asked(count=40, max_tokens=9))
    finishes = set()
    for rollout in (r for g in groups.values() for r in g.rollouts):
        finishes.add(rollout.finish)
        assert len(rollout.tokens) == len(rollout.logprobs) == len(rollout.forced) <= 9
        assert 33 not in rollout.tokens[:-1]
        assert (rollout.tokens[-1] == 33) == (rollout.finish == "stop")
        assert rollout.finish == "stop" or len(rollout.tokens) == 9
        assert rollout.versions == ((0, 0, len(rollout.tokens)),)
    assert finishes == {"stop", "length"}


def test_interruption_forces_the_phrase_unless_thinking_has_ended(random_model_folder: str) -> None:
    """The phrase (5, 9) ends with the end (9,); forced tokens carry no log-prob and the rest of the text is sampled."""
    requests = [Request(0, PROMPTS[0], 60, 1, 1.0, 12, tuple([4] * 30 + [6] * 30))]
    plain = sample(engine(random_model_folder), [Request(0, PROMPTS[0], 60, 1, 1.0, 12)])[0]
    cut = sample(engine(random_model_folder, Interruption((5, 9), (9,))), requests)[0]
    interrupted = 0
    for at, before, rollout in zip(requests[0].interrupt_at, plain.rollouts, cut.rollouts, strict=True):
        assert rollout.tokens[:at] == before.tokens[:at]
        if 9 in before.tokens[:at] or len(before.tokens) <= at:
            assert rollout.tokens == before.tokens and not any(rollout.forced)
            continue
        interrupted += 1
        assert rollout.tokens[at : at + 2] == (5, 9)
        assert [i for i, forced in enumerate(rollout.forced) if forced] == [at, at + 1]
        assert rollout.logprobs[at : at + 2] == (0.0, 0.0)
        assert all(value < 0 for i, value in enumerate(rollout.logprobs) if not rollout.forced[i])
    assert interrupted > 10


def test_forced_tokens_are_what_the_rest_is_conditioned_on(random_model_folder: str) -> None:
    rollouts = sample(
        engine(random_model_folder, Interruption((5, 9), (9,))), [Request(0, PROMPTS[1], 20, 5, 1.0, 12, (3,) * 20)]
    )[0].rollouts
    model, _ = load_model(random_model_folder)
    packed = pack([PROMPTS[1]] * 20, [r.tokens for r in rollouts], "cpu")
    with torch.no_grad():
        logp, _ = response_logprobs(model, packed, temperature=1.0, dtype="float32", head_dtype="float32")
    assert any(any(r.forced) for r in rollouts)
    for row, rollout in enumerate(rollouts):
        for position, (forced, recorded) in enumerate(zip(rollout.forced, rollout.logprobs, strict=True)):
            assert forced or abs(float(logp[row, position]) - recorded) < 1e-4


def test_samples_follow_the_distribution() -> None:
    """Inverse sampling of a known distribution: frequencies within five standard deviations, no impossible token."""
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    noise = torch.from_numpy(np.random.default_rng(0).random(20_000))
    drawn = _draw(probabilities.log().expand(20_000, 4), noise)
    shares = torch.bincount(drawn, minlength=4) / 20_000
    assert shares[1] == 0
    assert (shares - probabilities).abs().max() < 5 * 0.5 / 20_000**0.5
    edges = _draw(probabilities.log().expand(2, 4), torch.tensor([0.0, 1 - 1e-16]).double())
    assert edges.tolist() == [0, 3]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_tokens_are_drawn_from_the_tempered_distribution(random_model_folder: str, temperature: float) -> None:
    """Frequencies of the first token, and of the second after the likeliest first, within five standard deviations."""
    count = 2000
    request = Request(0, PROMPTS[0], count, 17, temperature, 2)
    rollouts = sample(engine(random_model_folder), [request])[0].rollouts
    model, _ = load_model(random_model_folder)
    first = [r.tokens[0] for r in rollouts]
    likeliest = max(set(first) - {1}, key=first.count)
    second = [r.tokens[1] for r in rollouts if r.tokens[0] == likeliest]
    assert len(second) > 100
    for context, drawn in ((PROMPTS[0], first), ((*PROMPTS[0], likeliest), second)):
        with torch.no_grad():
            shares = torch.softmax(model(input_ids=torch.tensor([context])).logits[0, -1].double() / temperature, -1)
        found = torch.bincount(torch.tensor(drawn), minlength=len(shares)) / len(drawn)
        assert ((found - shares).abs() <= 5 * (shares * (1 - shares) / len(drawn)).sqrt() + 1 / len(drawn)).all()


@pytest.mark.parametrize(
    ("dtype", "head"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
)
def test_recorded_logprobs_are_the_trainers_in_any_precision(random_model_folder: str, dtype: str, head: str) -> None:
    """One switch drives both sides: they agree better with each other than either does with float32. What is left
    comes from sums in another order, with a cache and with padding, that round to the next bfloat16 number."""
    model, _ = load_model(random_model_folder)
    sampler = LocalEngine(model, eos=1, dtype=dtype, head_dtype=head)
    groups = sample(sampler, asked(count=12))
    prompts = [PROMPTS[i] for i, group in groups.items() for _ in group.rollouts]
    rollouts = [rollout for group in groups.values() for rollout in group.rollouts]
    packed = pack(prompts, [r.tokens for r in rollouts], "cpu")
    recorded = torch.zeros(packed.targets.shape)
    for row, rollout in enumerate(rollouts):
        recorded[row, : len(rollout.tokens)] = torch.tensor(rollout.logprobs)

    def gap(dtype: str, head: str) -> float:
        with torch.no_grad():
            logp, _ = response_logprobs(model, packed, temperature=1.0, dtype=dtype, head_dtype=head)
        return float((logp - recorded)[packed.valid].abs().mean())

    assert gap(dtype, head) < 0.7 * gap("float32", "float32")
    assert gap("float32", "float32") > 1e-3


def test_published_weights_and_versions_are_used_from_then_on(random_model_folder: str) -> None:
    sampler = engine(random_model_folder)
    first = sample(sampler, asked())
    model, _ = load_model(random_model_folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    sampler.publish(7, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the engine has its own copy
    second = sample(sampler, asked())
    assert second[0].rollouts[0].versions[0][0] == 7
    assert [r.tokens for r in first[0].rollouts] != [r.tokens for r in second[0].rollouts]
    assert len({r.tokens for g in second.values() for r in g.rollouts}) > 8


def test_bfloat16_head_on_both_sides_agrees_and_differs_from_float32(random_model_folder: str) -> None:
    model, _ = load_model(random_model_folder)
    rounded = LocalEngine(model, eos=1, dtype="float32", head_dtype="bfloat16")
    rollouts = sample(rounded, asked())[0].rollouts
    packed = pack([PROMPTS[0]] * 3, [r.tokens for r in rollouts], "cpu")
    for head, largest in (("bfloat16", 1e-4), ("float32", None)):
        with torch.no_grad():
            logp, _ = response_logprobs(model, packed, temperature=1.0, dtype="float32", head_dtype=head)
        gap = max(
            abs(float(logp[row, i]) - value) for row, r in enumerate(rollouts) for i, value in enumerate(r.logprobs)
        )
        assert gap < largest if largest else gap > 1e-3
