from actors.node.refs import grouped_worker_names


def test_workers_are_numbered_through_group_by_group() -> None:
    assert grouped_worker_names((2, 1)) == [["worker:0", "worker:1"], ["worker:2"]]
