"""Whose an endpoint is, told from its name."""

from __future__ import annotations

import pytest

from waystation.delivery.desk import owner_of


@pytest.mark.parametrize(
    ("target", "owner"),
    [
        ("crm", ""),
        ("crm:0123456789ab", ""),
        ("w.shop.0123456789ab", "shop"),
        ("c.shop.news", "shop"),
        ("crm.shop.example:0123456789ab", ""),
        ("w.shop.example:0123456789ab", ""),
        ("127.0.0.1:0123456789ab", ""),
        ("::1:0123456789ab", ""),
    ],
)
def test_a_host_is_never_taken_for_a_receiver_of_a_project(target: str, owner: str) -> None:
    assert owner_of(target) == owner
