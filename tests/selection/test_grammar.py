import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hccljax.errors import ArgumentError, SettingError
from hccljax.selection.grammar import (
    EXTRA_WORDS,
    HCCL_WORDS,
    LEVEL_WORDS,
    OPERATOR_WORDS,
    UNCHOSEN,
    AlgoSetting,
    Levels,
    parse_algo,
    strict_problems,
)

OPERATORS = tuple(OPERATOR_WORDS.values())
WITHOUT_WORD = ("send_recv", "barrier")
V_FORMS = {
    "all_gather_v": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_v": "all_to_all",
    "all_to_all_vc": "all_to_all",
    "gather_v": "gather",
}
WORDS = (*HCCL_WORDS, *EXTRA_WORDS)

names = st.none() | st.sampled_from(WORDS)
levels = st.builds(Levels, st.lists(names, min_size=1, max_size=4).map(tuple)) | st.builds(
    lambda name: Levels((name,), every_level=True), names
)
per_operator = st.dictionaries(st.sampled_from(OPERATORS), levels).map(lambda d: tuple(d.items()))
settings = st.builds(AlgoSetting, levels) | st.builds(AlgoSetting, st.none(), per_operator)


# What the text means


@pytest.mark.parametrize("text", ["", " ", "\t \n"])
def test_an_empty_text_leaves_everything_automatic(text):
    setting = parse_algo(text)
    assert setting == AlgoSetting()
    assert setting.automatic
    assert all(setting.for_operator(operator) is None for operator in (*OPERATORS, *WITHOUT_WORD))


@pytest.mark.parametrize("name", WORDS)
def test_a_name_alone_is_that_algorithm_on_every_level_for_every_operator(name):
    setting = parse_algo(name)
    assert setting == AlgoSetting(Levels((name,), every_level=True))
    assert not setting.automatic
    for operator in (*OPERATORS, *WITHOUT_WORD, *V_FORMS):
        assert [setting.for_operator(operator).at(level) for level in range(6)] == [name] * 6


@pytest.mark.parametrize("name", UNCHOSEN)
def test_na_and_null_choose_nothing(name):
    assert parse_algo(name) == AlgoSetting(Levels((None,), every_level=True))
    assert parse_algo(name).automatic
    assert parse_algo(f"level0:{name};level1:{name}").automatic
    assert parse_algo(f"allreduce=level0:{name}").automatic


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("level0:ring;level1:tree", ("ring", "tree")),
        ("level1:tree;level0:ring", ("ring", "tree")),
        ("level0:NA;level1:NHR", (None, "NHR")),
        ("level1:NHR", (None, "NHR")),
        ("level0:null;level1:H-D_R;level2:ring;level3:NB", (None, "H-D_R", "ring", "NB")),
        ("level3:AHC_BROKE", (None, None, None, "AHC_BROKE")),
        ("level0:ring", ("ring",)),
        ("level0:ring;level1:NA;level2:null", ("ring",)),
    ],
)
def test_levels_for_every_operator(text, expected):
    for operator in (*OPERATORS, *WITHOUT_WORD):
        chosen = parse_algo(text).for_operator(operator)
        assert chosen == Levels(expected)
        assert [chosen.at(level) for level in range(5)] == [*expected, *[None] * (5 - len(expected))]


@pytest.mark.parametrize(("word", "operator"), OPERATOR_WORDS.items())
def test_each_operator_word_names_its_operator_and_no_other(word, operator):
    setting = parse_algo(f"{word}=level0:NA;level1:ring")
    for other in (*OPERATORS, *WITHOUT_WORD):
        assert setting.for_operator(other) == (Levels((None, "ring")) if other == operator else None)


def test_hccls_own_example_form():
    setting = parse_algo("allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:NHR")
    assert setting.for_operator("all_reduce").names == (None, "ring")
    assert setting.for_operator("all_gather").names == (None, "NHR")
    assert setting.for_operator("reduce_scatter") is None


def test_the_short_form_stands_after_an_operator_too():
    setting = parse_algo("allreduce=tree/alltoall=level0:NA;level1:pairwise")
    assert setting.for_operator("all_reduce") == Levels(("tree",), every_level=True)
    assert setting.for_operator("all_to_all") == Levels((None, "pairwise"))


@pytest.mark.parametrize(("operator", "base"), V_FORMS.items())
def test_v_forms_follow_their_base_operator(operator, base):
    setting = AlgoSetting(per_operator=((base, Levels((None, "NHR"))),))
    assert setting.for_operator(operator) == setting.for_operator(base) == Levels((None, "NHR"))


@pytest.mark.parametrize(
    ("text", "blank_free"),
    [
        (" ring ", "ring"),
        ("level0 : NA ; level1\t:\tring", "level0:NA;level1:ring"),
        (
            "all reduce = level0:NA;\n level1:N H R / allgather=ring",
            "allreduce=level0:NA;level1:NHR/allgather=ring",
        ),
    ],
)
def test_blanks_do_not_count(text, blank_free):
    assert parse_algo(text) == parse_algo(blank_free)


def test_names_from_outside_are_accepted_only_when_given():
    with pytest.raises(SettingError, match="unknown algorithm 'swing'"):
        parse_algo("swing")
    assert parse_algo("level1:swing", ["swing", "ring"]).for_operator("reduce").at(1) == "swing"
    assert parse_algo("swing", frozenset({"swing"})) == AlgoSetting(Levels(("swing",), every_level=True))
    with pytest.raises(SettingError, match="Did you mean swing"):
        parse_algo("swings", {"swing"})


def test_a_name_in_both_lists_is_offered_once():
    with pytest.raises(SettingError) as caught:
        parse_algo("zzz", ("ring", "tree"))
    assert len(re.findall(r"\bring\b", str(caught.value))) == 1


def test_the_same_text_is_parsed_once():
    assert parse_algo("level1:ring", ["x"]) is parse_algo("level1:ring", ("x",))


# The canonical text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("null", "NA"),
        (" tree ", "tree"),
        ("level1:tree ; level0:ring", "level0:ring;level1:tree"),
        ("level2:ring", "level0:NA;level1:NA;level2:ring"),
        ("level0:null", "level0:NA"),
        ("allgather=ring/allreduce=level1:NB", "allreduce=level0:NA;level1:NB/allgather=ring"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse_algo(text)) == canonical


@given(settings)
def test_the_canonical_text_parses_back(setting):
    again = parse_algo(str(setting))
    assert again == setting
    assert hash(again) == hash(setting)
    assert str(again) == str(setting)


@given(settings, st.data())
def test_blanks_anywhere_and_any_order_mean_the_same(setting, data):
    parts = [part.split(";") for part in str(setting).split("/")]
    if len(parts) == 1 and "=" not in str(setting):
        parts = [data.draw(st.permutations(parts[0]))]  # the levels; behind an operator they follow its "="
    text = "/".join(";".join(part) for part in data.draw(st.permutations(parts)))
    for cut in data.draw(st.lists(st.integers(0, len(text)), max_size=5)):
        text = text[:cut] + data.draw(st.sampled_from([" ", "\t", "  "])) + text[cut:]
    assert parse_algo(text) == setting


# What is no setting: (text, what the message says, the piece it underlines)

BAD = [
    pytest.param("rign", "unknown algorithm 'rign'.*Did you mean ring", "rign", id="algorithm"),
    pytest.param("Ring", "unknown algorithm 'Ring'.*Did you mean ring", "Ring", id="algorithm-case"),
    pytest.param("h-d_r", "unknown algorithm.*Did you mean H-D_R", "h-d_r", id="algorithm-lower-case"),
    pytest.param("level0:NA;level1:na", "unknown algorithm.*Did you mean NA", "na", id="na-case"),
    pytest.param("level0:NA; level1: nhr ", "unknown algorithm 'nhr'.*Did you mean NHR", "nhr", id="at-level"),
    pytest.param("allreduce=level1:foo", "unknown algorithm 'foo'", "foo", id="algorithm-of-operator"),
    pytest.param("ring,tree", "unknown algorithm 'ring,tree'", "ring,tree", id="comma"),
    pytest.param("level4:ring", "'level4' where a level belongs", "level4", id="level"),
    pytest.param("Level1:ring", "'Level1' where a level.*Did you mean level1", "Level1", id="level-case"),
    pytest.param("ring;level1:tree", "'ring' where a level belongs", "ring", id="name-among-levels"),
    pytest.param("ring;tree", "'ring' where a level belongs", "ring", id="two-names"),
    pytest.param("level0", "has 0 algorithms for level0", "level0", id="level-alone"),
    pytest.param("level1:ring;level2", "has 0 algorithms for level2", "level2", id="level-without-name"),
    pytest.param("level0:NA:ring", "has 2 algorithms for level0", "level0:NA:ring", id="two-colons"),
    pytest.param("level0:NA,level1:ring", "2 algorithms.*';' between", "level0:NA,level1:ring", id="comma-levels"),
    pytest.param("level1:ring;level1:NHR", "names level1 twice", "level1", id="level-twice"),
    pytest.param("level1:ring;" * 4 + "level2:NB", "has 5 levels.*at most 4", "level2:NB", id="five-levels"),
    pytest.param(";level1:ring", "nothing before a ';'", ";", id="semicolon-first"),
    pytest.param("level1:ring;", "nothing after a ';'", ";", id="semicolon-last"),
    pytest.param("level0:NA;;level1:ring", "nothing after a ';'", ";", id="semicolon-doubled"),
    pytest.param(":ring", "nothing before a ':'", ":", id="colon-first"),
    pytest.param("level0:", "nothing after a ':'", ":", id="colon-last"),
    pytest.param("/allreduce=ring", "nothing before a '/'", "/", id="slash-first"),
    pytest.param("allreduce=ring/", "nothing after a '/'", "/", id="slash-last"),
    pytest.param("allreduce=ring//reduce=ring", "nothing after a '/'", "/", id="slash-doubled"),
    pytest.param("level1:ring/", "nothing after a '/'", "/", id="slash-after-levels"),
    pytest.param("=ring", "nothing before a '='", "=", id="equals-first"),
    pytest.param("allreduce=", "nothing after a '='", "=", id="equals-last"),
    pytest.param("ring/tree", "'ring' without an operator", "ring", id="slash-without-operators"),
    pytest.param("allreduce=ring/tree", "'tree' without an operator.*does not mix", "tree", id="mixed"),
    pytest.param(
        "level0:NA;level1:ring/allgather=ring",
        "does not mix",
        "level0:NA;level1:ring",
        id="mixed-levels-first",
    ),
    pytest.param(
        "allreduce=level1:ring;allgather=level1:NHR",
        "second '='.*separate operators by '/'",
        "=",
        id="two-equals",
    ),
    pytest.param("allreduce=ring/ allreduce =tree", "operator allreduce twice", "allreduce", id="operator-twice"),
    pytest.param("all_reduce=ring", "operator 'all_reduce'.*Did you mean allreduce", "all_reduce", id="underscore"),
    pytest.param("AllGather=ring", "operator 'AllGather'.*Did you mean allgather", "AllGather", id="operator-case"),
    pytest.param("allgatherv=ring", "V forms too.*Did you mean allgather", "allgatherv", id="v-form"),
    pytest.param("send=ring", "unknown operator 'send'", "send", id="operator-without-word"),
]


@pytest.mark.parametrize(("text", "says", "marked"), BAD)
def test_an_error_repeats_the_text_marks_the_piece_and_says_the_fix(text, says, marked):
    with pytest.raises(SettingError, match="(?s)" + says) as caught:
        parse_algo(text)
    problem, shown, under, expected = str(caught.value).split("\n")
    assert problem.startswith("EI0001: HCCL_ALGO ")
    assert shown == f"    {text.replace(chr(9), ' ')}"
    assert [shown[m.start() : m.end()] for m in re.finditer(r"\^+", under)] == [marked]
    assert re.match("expected .*; ", expected)


@pytest.mark.parametrize("word", [*HCCL_WORDS, *EXTRA_WORDS, *UNCHOSEN])
def test_an_unknown_algorithm_is_answered_with_every_known_one(word):
    with pytest.raises(SettingError, match=rf"expected one of .*\b{re.escape(word)}\b"):
        parse_algo("qqqq")


def test_the_second_of_two_equal_pieces_is_marked():
    with pytest.raises(SettingError) as caught:
        parse_algo("allreduce=ring/allreduce=ring")
    assert str(caught.value).split("\n")[2] == " " * (4 + len("allreduce=ring/")) + "^" * len("allreduce")


@pytest.mark.parametrize("at", [0, 30, 500, 1000])
def test_a_long_text_is_shown_around_the_piece(at):
    text = " " * at + "rign" + " " * (1000 - at)
    with pytest.raises(SettingError) as caught:
        parse_algo(text)
    _, shown, under, _ = str(caught.value).split("\n")
    assert len(shown) < 200
    assert shown[under.index("^") : len(under)] == "rign"


@pytest.mark.parametrize("value", [None, 1, 1.5, True, b"ring", ["ring"], {"level0": "ring"}, object(), set()])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(SettingError, match="expected a text; pass a str"):
        parse_algo(value)


@pytest.mark.parametrize(
    "piece", ["/", ";", ":", "=", "ring;", "level0:ring;", "allreduce=ring/", "a", "\0", "环", "\ud800"]
)
@pytest.mark.parametrize("size", [100, 4_000, 100_000])
def test_hostile_texts_are_refused_in_a_short_message(piece, size):
    text = (piece * size)[:size]
    with pytest.raises(SettingError) as caught:
        parse_algo(text)
    assert len(str(caught.value)) < 2_000
    str(caught.value).encode()  # so that it can be printed and logged


def test_a_long_text_is_refused_before_it_is_read():
    with pytest.raises(SettingError, match=r"has 5000 characters .* at most 4096"):
        parse_algo(" " * 5000)
    assert parse_algo(" " * 4096).automatic


def test_everything_said_at_once_is_short_enough():
    text = "/".join(
        f"{word} = " + " ; ".join(f"{level} : double_tree" for level in LEVEL_WORDS) for word in OPERATOR_WORDS
    )
    assert parse_algo(text).for_operator("gather") == Levels(("double_tree",) * 4)


fragments = st.lists(
    st.sampled_from(
        [*"/=;: \t\0,", "level0", "level1", "level9", "ring", "NA", "allreduce", "allgather", "é", "\udcff"]
    )
).map("".join)


@given(st.text() | fragments | st.text("/=;: ring"))
@example("\x1c/\x85=\u3000;")
def test_any_text_is_a_setting_or_a_setting_error(text):
    try:
        setting = parse_algo(text)
    except SettingError as error:
        message = str(error)
        assert message.startswith("EI0001: HCCL_ALGO ")
        message.encode()
        assert len(message.split("\n")) == 4
        assert "^" in message.split("\n")[2]
    else:
        assert parse_algo(str(setting)) == setting


# The values themselves


@pytest.mark.parametrize(
    ("given_names", "every_level", "says"),
    [
        ((), False, "0 names .* expected 1 to 4"),
        (("ring",) * 5, False, "5 names .* expected 1 to 4"),
        ((), True, "0 names"),
        (("ring", "ring"), True, "2 names .* expected 1 to 1"),
        (("",), False, "algorithm name ''"),
        (("NA",), False, "algorithm name 'NA'.*None for an automatic level"),
        (("null",), True, "algorithm name 'null'"),
        (("a b",), False, "without blanks"),
        (("a;b",), False, "without any of"),
        ((1,), False, "algorithm name 1"),
    ],
)
def test_levels_check_themselves(given_names, every_level, says):
    with pytest.raises(SettingError, match=says):
        Levels(given_names, every_level)


def test_levels_drop_automatic_levels_at_the_end():
    assert Levels(("ring", None, None)) == Levels(("ring",))
    assert Levels((None, None)) == Levels((None,)) != Levels((None,), every_level=True)


def test_a_level_below_0_is_refused():
    with pytest.raises(ArgumentError, match="level is -1"):
        Levels(("ring",)).at(-1)


def test_settings_that_mean_the_same_are_equal():
    ring, tree = Levels(("ring",)), Levels(("tree",))
    one = AlgoSetting(per_operator=(("all_reduce", ring), ("reduce", tree)))
    other = AlgoSetting(per_operator=(("reduce", tree), ("all_reduce", ring)))
    assert one == other
    assert len({one, other}) == 1


@pytest.mark.parametrize(
    ("every", "each", "says"),
    [
        (Levels(("ring",)), (("reduce", Levels(("ring",))),), "one form or the other"),
        (None, (("allreduce", Levels(("ring",))),), "operator 'allreduce'.*Did you mean all_reduce"),
        (None, (("send_recv", Levels(("ring",))),), "operator 'send_recv'"),
        (None, ((7, Levels(("ring",))),), "operator 7"),
        (None, (("reduce", Levels(("ring",))), ("reduce", Levels(("tree",)))), "reduce twice"),
    ],
)
def test_settings_check_themselves(every, each, says):
    with pytest.raises(SettingError, match=says):
        AlgoSetting(every, each)


@pytest.mark.parametrize("operator", ["allreduce", "all_reduces", "", "_v", "all_reduce_w"])
def test_an_unknown_operator_is_an_argument_error(operator):
    for text in ("", "ring", "allreduce=ring"):
        with pytest.raises(ArgumentError, match="expected one of all_reduce, all_gather"):
            parse_algo(text).for_operator(operator)


# What HCCL itself would reject


@pytest.mark.parametrize("name", [None, *HCCL_WORDS])
@pytest.mark.parametrize("start", ["", *(f"{word}=" for word in OPERATOR_WORDS if word != "gather")])
def test_hccls_own_form_has_no_problems(start, name):
    assert strict_problems(parse_algo(f"{start}level0:NA;level1:{name or 'NA'}")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("ring", ["ring is a short form .* write level0:NA;level1:ring"]),
        ("NA", ["NA is a short form .* write level0:NA;level1:NA"]),
        ("tree", ["tree is a short form", "tree in tree is not an algorithm word"]),
        ("level0:ring;level1:NHR", ["level0:ring is not HCCL's"]),
        ("level0:ring;level1:tree", ["level0:ring is not HCCL's", "tree in level0:ring;level1:tree is not"]),
        ("level1:tree;level2:tree;level3:bruck", ["tree in", "bruck in"]),
        (
            "allreduce=ring/reduce=level0:NA;level1:ring",
            ["allreduce=ring .* write allreduce=level0:NA;level1:ring"],
        ),
        ("gather=level1:ring", ["no operator gather"]),
        (
            "gather=level0:star",
            ["no operator gather", "gather=level0:star is not", "star in gather=level0:star"],
        ),
    ],
)
def test_strict_problems(text, expected):
    problems = strict_problems(parse_algo(text))
    assert len(problems) == len(expected)
    for problem, pattern in zip(problems, expected, strict=True):
        assert re.match(f"(HCCL has )?{pattern}", problem)
        assert problem.endswith(".")


@given(settings)
def test_the_strict_check_follows_the_rule(setting):
    parts = [setting.every_operator] if setting.every_operator else [levels for _, levels in setting.per_operator]
    hccls_own = all(
        not part.every_level and part.names[0] is None and set(part.names) <= {None, *HCCL_WORDS} for part in parts
    ) and "gather" not in dict(setting.per_operator)
    assert (strict_problems(setting) == []) == hccls_own
