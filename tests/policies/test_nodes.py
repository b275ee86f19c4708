"""Which node could give what a host asks for: by amounts and by labels, and in words when none could."""

from __future__ import annotations

import pytest

from perdure.policies import NodeOffer, has_labels, is_label, is_label_expression, node_lack

PLAIN = NodeOffer({"CPU": 4.0, "memory": 8e9}, {"ray.io/node-id": "f00", "zone": "a"})
BIG = NodeOffer(
    {"CPU": 8.0, "GPU": 2.0, "memory": 16e9, "accelerator_type:T4": 1.0},
    {"ray.io/node-id": "ba5", "zone": "b", "spot": ""},
)


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("a", ["a"]),
        ("!a", ["b", "", None]),
        ("in(a,b)", ["a", "b"]),
        ("in(a, c)", ["a"]),
        ("!in(a, b)", ["", None]),
        ("", [""]),
        ("!", ["a", "b", None]),
        ("inner", []),
    ],
)
def test_an_expression_names_the_values_that_a_label_has_and_a_missing_label_has_none(
    expression: str, values: list[str | None]
) -> None:
    every: list[str | None] = ["a", "b", "", None]
    having = [value for value in every if has_labels({} if value is None else {"zone": value}, [("zone", expression)])]
    assert having == [value for value in every if value in values]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("a", True),
        ("A-1.b_c", True),
        ("!in(a,b, c)", True),
        ("in(a)", True),
        ("", True),
        ("a b", False),
        ("in()", False),
        ("in(a,)", False),
        ("in(a,  b)", False),
        ("in(!a)", False),
        ("!!a", False),
        ("a\n", False),
        ("-a", False),
        ("a" * 64, False),
        (None, False),
        (1, False),
    ],
)
def test_what_ray_takes_for_an_expression_is_one(text: object, is_one: bool) -> None:
    assert is_label_expression(text) is is_one


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("zone", True),
        ("ray.io/node-id", True),
        ("a.b.c/d_e", True),
        ("", False),
        ("/zone", False),
        ("a/b/c", False),
        ("zone-", False),
        ("b" * 64, False),
        (("b" * 60 + ".") * 5 + "c/zone", False),
        (7, False),
    ],
)
def test_what_kubernetes_takes_for_the_name_of_a_label_is_one(name: object, is_one: bool) -> None:
    assert is_label(name) is is_one


def test_a_node_that_is_large_enough_and_has_the_labels_lacks_nothing() -> None:
    assert node_lack([PLAIN, BIG], {}) == ""
    assert node_lack([PLAIN, BIG], {"CPU": 8, "GPU": 2, "accelerator_type:T4": 0.001}, [("zone", "!a")]) == ""
    assert node_lack([PLAIN, BIG], {}, [("zone", "in(b, c)")]) == ""
    assert node_lack([], {}) == ""


@pytest.mark.parametrize(
    ("wanted", "selector", "told"),
    [
        ({"GPU": 4.0}, [], "no node has 4 GPU (the most that one has: 2 GPU)"),
        ({"memory": 64e9}, [], "no node has 64 GB of memory (the most that one has: 16 GB of memory)"),
        ({"accelerator_type:A100": 0.001}, [], "no node has accelerator_type A100 (types of accelerators: T4)"),
        (
            {"CPU": 6},
            [("zone", "a")],
            "no node has 6 CPU, label zone=a (the most that one has: 8 CPU; labels: spot=, zone=a, zone=b)",
        ),
        ({}, [("zone", "c")], "no node has label zone=c (labels: spot=, zone=a, zone=b)"),
    ],
)
def test_what_no_node_has_is_told_with_what_there_is(
    wanted: dict[str, float], selector: list[tuple[str, str]], told: str
) -> None:
    assert node_lack([PLAIN, BIG], wanted, selector) == told


def test_where_there_is_nothing_of_the_kind_that_is_said() -> None:
    bare = NodeOffer({"CPU": 1.0}, {"ray.io/node-id": "f00"})
    told = node_lack([bare], {"GPU": 1, "accelerator_type:A100": 0.001}, [("zone", "a")])
    assert told.endswith("(the most that one has: 0 GPU; types of accelerators: none; labels: none)")
    many = NodeOffer({}, {f"label-{number}": "long" * 10 for number in range(100)})
    assert len(node_lack([many], {}, [("zone", "a")])) < 600
