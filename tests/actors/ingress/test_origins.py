import pytest

from actors.ingress.origins import is_address_loopback, is_host_loopback, is_origin_allowed


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "answer"),
    [
        (None, None, (), True),
        ("http://a.example", "a.example", (), True),
        ("http://a.example:80", "a.example", (), True),
        ("https://a.example", "a.example:443", (), True),
        ("http://A.Example:8765", "a.example:8765", (), True),
        ("http://a.example:8766", "a.example:8765", (), False),
        ("http://a.example.evil", "a.example", (), False),
        ("http://evil", "a.example", (), False),
        ("http://evil", None, (), False),
        ("null", "a.example", (), False),
        ("null", "a.example", ("null",), True),
        ("file://", "a.example", (), False),
        ("http://[", "[", (), False),
        ("", "a.example", (), False),
        ("https://b.example/", "a.example", ("https://b.example",), True),
        ("https://b.example", "a.example", ("http://b.example",), False),
        ("https://b.example", "a.example", ("*",), True),
    ],
)
def test_which_origins_may_connect(
    origin: str | None,
    host: str | None,
    allowed: tuple[str, ...],
    answer: bool,  # noqa: FBT001 - a table
) -> None:
    assert is_origin_allowed(origin, host, allowed) is answer


@pytest.mark.parametrize("host", ["localhost", "localhost.", "127.0.0.1:80", "[::1]", "[::1]:80", "LocalHost:1"])
def test_loopback_hosts(host: str) -> None:
    assert is_host_loopback(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil", "localhost.evil", "1.2.3.4", "[::2]", "[", "::1:80", "127.0.0.1@evil"]
)
def test_foreign_hosts(host: str | None) -> None:
    assert not is_host_loopback(host)


def test_loopback_addresses() -> None:
    assert is_address_loopback("127.0.0.2")
    assert is_address_loopback("::1")
    assert not is_address_loopback("0.0.0.0")  # noqa: S104 - the address that means all
    assert not is_address_loopback("name")
