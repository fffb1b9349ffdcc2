"""A real node whose groups nobody sized."""

import json

from tests.end_to_end.running_node import RunningNode, running_node
from tests.end_to_end.test_same_text import outputs, prompts


async def test_two_cpu_devices_form_the_group_whose_steps_are_predicted_to_be_shorter(demo_node: RunningNode) -> None:
    with running_node("--devices", "cpu:0,cpu:1", "--num-pages", "512") as node:
        lines = node.log.read_text().splitlines()
        (choice,) = [json.loads(line) for line in lines if "tensor-parallel size chosen" in line]
        assert "is predicted to take" in choice["reason"]
        ready = next(line for line in lines if line.startswith("tokenstage ready"))
        assert ("tp 2)" in ready) == (choice["tp"] == 2)
        chosen = prompts()[:16:5]
        assert await outputs(node, chosen) == await outputs(demo_node, chosen, cache_salt="auto")
        assert node.stop() == 0
