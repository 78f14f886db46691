"""Regular expressions of PostgreSQL's as Java has them."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.common.regular import Unlike, java_pattern, pattern, replacement_for
from headrace.errors import StatementError
from support import examples

ONE_WAY = [
    "https?://[^/]+", r"-?\d+(\.\d+)?", "(foo|bar)", "a?b?", "(ab)*c", r"\d{1,3}(,\d{3})*", "[^,]*(,|$)", "(b|a*)",
    "é?e", "((a)|b)c", "[]a]?b", "(?:ab)+", r"(?=ab)a?b", r"(\d{2})*", "(a+)+", r"(\d{1,3})*", "[a^-z]?0",
    "[a-c]?d", "x|y",
]  # fmt: skip
SEVERAL_WAYS = [
    "(a|ab)", "(cat|car)", "(|a)", "(a*)*", "[a-z]?a", "[^]a]?b", "(ab)*a", "(?:ab)*a", "a?.", r"\W?\w", "[a-]?-",
    "A?a", r"(?:\d{2,3})+", "(a{2,3}){1,2}", "(b{2,3}|a)*", "a+?", "(a*|b)", ".{0,1}(?:^[b-c]{0,1}\\w+){0,1}",
]  # fmt: skip


@pytest.mark.parametrize("text", ONE_WAY)
def test_what_can_be_matched_in_one_way_is_matched_as_by_postgres(text: str) -> None:
    assert not pattern(text).longest
    java_pattern(text, "", "everywhere")


@pytest.mark.parametrize("text", SEVERAL_WAYS)
def test_of_several_ways_java_might_take_another_one(text: str) -> None:
    assert java_pattern(text, "", "any")
    with pytest.raises(Unlike, match="several ways"):
        java_pattern(text, "", "exact")


@pytest.mark.parametrize(
    ("text", "optional"),
    [("(foo|bar)", False), ("(a)|b", True), ("x((a)|b)y", True), ("(a)?", True), ("(?:(a)b)*", True), ("(a)b*", False)],
)
def test_groups_that_may_have_no_part(text: str, optional: bool) -> None:
    assert pattern(text).optional_groups is optional
    if optional:
        with pytest.raises(Unlike):
            java_pattern(text, "", "captured")


@pytest.mark.parametrize(
    ("text", "message"),
    [("(a", "parentheses"), ("a)", "parentheses"), ("[a", "brackets"), ("a{2", "braces"), ("*a", "quantifier"),
     (r"\y+", "quantifier"), ("a{256}", "repetition"), ("[[:alpha:]-z]", "range"),
     ("a{2,1}", "repetition"), ("[z-a]", "range"), (r"[a-\d]", "range"), ("a\\", "escape")],
)  # fmt: skip
def test_what_is_no_pattern(text: str, message: str) -> None:
    with pytest.raises(StatementError, match=message) as caught:
        pattern(text)
    assert caught.value.sqlstate == "2201B"


def test_a_replacement_of_the_first_match_keeps_what_is_around_it() -> None:
    assert java_pattern("(a)b", "i", "first") == r"(?isu)^(.*?)((a)b)(.*)\z"
    assert replacement_for(r"<\1\&$>", "(a)b", "first") == r"$1<$3$2\$>$4"
    assert replacement_for(r"<\1\&$>", "(a)b", "everywhere") == r"<$1$0\$>"
    assert java_pattern("ab", "", "captured") == "(?s)(ab)"


def test_groups_that_there_are_not_and_digits_behind_groups() -> None:
    assert replacement_for(r"[\1\2]", "b", "everywhere") == "[]"
    assert replacement_for(r"[\1\2]", "(b)", "first") == "$1[$3]$4"
    assert replacement_for(r"\10\0", "(b)", "everywhere") == r"$1\0\\0"


def test_what_only_looks_captures_nothing() -> None:
    assert pattern("(?=(a))(ab)").java == "(?=(?:a))(ab)"
    assert pattern("(?=(a))(ab)").groups == 1


def test_ranges_and_counts_are_those_of_postgres() -> None:
    assert java_pattern("[a^-z]", "", "any") == r"(?s)[a\^-z]"
    assert pattern("a{²}").java == r"a\{²\}"


@pytest.mark.parametrize(
    ("text", "java"),
    [("^(a|b)*$", r"^(a|b)*+\z"), ("(ab?)*", "(ab?)*+"), ("((a|b)*c)+", "((a|b)*+c)++"), ("(ab)*", "(ab)*"),
     ("([a-z]+0)*1", "([a-z]+0)*+1"), ("^((a)|b)*", "^((a)|b)*+")],
)  # fmt: skip
def test_a_loop_whose_turns_are_certain_gives_nothing_back(text: str, java: str) -> None:
    """Java keeps no frames for it: the text may be of any length."""
    assert (pattern(text).java, pattern(text).most_characters) == (java, None)


@pytest.mark.parametrize(
    ("text", "most"),
    [("(a|ab)*", 6000), ("(a+)+", 6000), (r"(a|b)*\M", 6000), ("(a|b)*(?=c)", 6000), ("(a|b)*^c", 6000),
     ("(?:a|b)*?", 6000), ("(((a|ab)x)*y)*", 3000), ("((a|ab){0,255}){5}", 4000), ("(a|ab){0,255}", None),
     ("(a{1,3}){2}", None), ("a|ab|[ab]*a", None)],
)  # fmt: skip
def test_other_loops_bound_the_text(text: str, most: int | None) -> None:
    assert pattern(text).most_characters == most
    if most is not None:
        java_pattern(text, "", "any", most)
        with pytest.raises(StatementError, match="too long") as caught:
            java_pattern(text, "", "any", most + 1)
        assert caught.value.sqlstate == "54001"


@pytest.mark.parametrize("text", ["a" * 10_001, "(" * 50 + "a" + ")" * 50])
def test_patterns_of_any_size_would_need_any_stack(text: str) -> None:
    with pytest.raises(Unlike):
        pattern(text)


_ATOMS = st.sampled_from(["a", "b", "c", "[ab]", "[^a]", "."])
_TIMES = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "{2,3}"])


def _repeated(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    choices = st.lists(st.lists(parts, min_size=1, max_size=3).map("".join), min_size=1, max_size=3).map("|".join)
    return st.builds("({}){}".format, choices, _TIMES)


_PATTERNS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "^"]),
    st.lists(st.recursive(st.builds("{}{}".format, _ATOMS, _TIMES), _repeated, max_leaves=8), min_size=1, max_size=3)
    .map("".join),
    st.sampled_from(["", "$", "b"]),
)  # fmt: skip


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its regular expressions have no possessive quantifiers")
@given(text=_PATTERNS, over=st.lists(st.text("abc", max_size=12), min_size=5, max_size=5))
@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_nothing_that_is_given_back_would_have_been_matched(text: str, over: list[str]) -> None:
    """Matches are the same where a loop gives back what it has taken."""
    java = pattern(text).java
    assume(java != text.replace("$", r"\z"))
    giving_back = re.compile(re.sub(r"([*+?}])\+", r"\1", java).replace(r"\z", r"\Z"))
    keeping = re.compile(java.replace(r"\z", r"\Z"))
    for subject in over:
        assert [m.span() for m in keeping.finditer(subject)] == [m.span() for m in giving_back.finditer(subject)]
