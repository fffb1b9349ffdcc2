import math

from prometheus_client.parser import text_string_to_metric_families

from actors.ingress.metrics import label, merge, render
from protocol.messages import MetricFamily, MetricsSnapshot, Sample


def snapshot(*families: MetricFamily) -> MetricsSnapshot:
    return MetricsSnapshot(list(families))


def counter(value: float, **labels: str) -> MetricFamily:
    return MetricFamily("failures", "counter", "Failed.", [Sample("failures_total", labels, value)])


def test_samples_of_one_name_and_labels_are_added_up() -> None:
    merged = merge([snapshot(counter(1, code="a", model="m")), snapshot(counter(2, model="m", code="a"))])
    assert merged == [counter(3, code="a", model="m")]


def test_other_labels_stay_apart_in_one_family() -> None:
    (family,) = merge([snapshot(counter(1, code="a")), snapshot(counter(2, code="b"))])
    assert [sample.value for sample in family.samples] == [1, 2]


def test_prometheus_own_parser_reads_the_page_back() -> None:
    odd = 'a"b\\c\nd'
    families = [
        counter(2.5, code=odd),
        MetricFamily(
            "free", "gauge", "Two\nlines \\ and more.", [Sample("free", {}, 3.0), Sample("free", {"g": ""}, math.nan)]
        ),
        MetricFamily(
            "wait",
            "histogram",
            "Wait.",
            [
                Sample("wait_bucket", {"le": "+Inf"}, 1.0),
                Sample("wait_sum", {}, math.inf),
                Sample("wait_count", {}, 1.0),
            ],
        ),
    ]
    read = {family.name: family for family in text_string_to_metric_families(render(families))}
    assert read["failures"].type == "counter"
    assert (read["failures"].samples[0].labels, read["failures"].samples[0].value) == ({"code": odd}, 2.5)
    assert read["free"].documentation == "Two\nlines \\ and more."
    assert math.isnan(read["free"].samples[1].value)
    assert [sample.value for sample in read["wait"].samples] == [1.0, math.inf, 1.0]


def test_a_label_is_added_to_samples_that_lack_it() -> None:
    (family,) = label([counter(1, code="a")], "model", "m")
    assert family.samples == [Sample("failures_total", {"model": "m", "code": "a"}, 1)]
    (family,) = label([counter(2, model="n")], "model", "m")
    assert family.samples[0].labels == {"model": "n"}
