import random

from actors.scheduler.cost import CostModel, StepLoad


def true_seconds(load: StepLoad) -> float:
    return 0.008 + 2e-5 * load.num_decode_rows + 3e-5 * load.num_prefill_tokens + 1e-8 * load.num_kv_tokens


def test_it_learns_an_affine_machine() -> None:
    rng = random.Random(0)
    model = CostModel()
    assert model.predict(StepLoad(1, 0, 0)) is None
    for _ in range(300):
        load = StepLoad(rng.randint(0, 256), rng.choice([0, 64, 512]), rng.randint(0, 500_000))
        model.observe(load, true_seconds(load) * rng.uniform(0.98, 1.02))
    load = StepLoad(100, 256, 100_000)
    predicted = model.predict(load)
    assert predicted is not None
    assert abs(predicted - true_seconds(load)) < 0.02 * true_seconds(load)


def test_it_follows_a_machine_that_slows_down() -> None:
    model = CostModel()
    load = StepLoad(8, 0, 1000)
    for seconds in [0.01] * 2000 + [0.03] * 1000:
        model.observe(load, seconds)
    predicted = model.predict(load)
    assert predicted is not None
    assert abs(predicted - 0.03) < 0.001
