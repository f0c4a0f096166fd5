"""What a part says of itself: class attributes with settings in braces, or methods."""

from __future__ import annotations

from typing import Literal

import pytest
from torch import Tensor

from grouprl.algorithms.data_part import Augmentation
from grouprl.algorithms.part import PARTS, Part, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError


@pytest.fixture
def forget():
    """Take the parts that a test registers out of the registry again."""
    before = {kind: dict(found) for kind, found in PARTS.items()}
    yield
    for kind, found in PARTS.items():
        for name in set(found) - set(before[kind]):
            del found[name]


class Weight(Part):
    def __call__(self, batch: Batch) -> Tensor:
        return batch.mask_bt.float()


def test_settings_stand_in_the_sentence_the_formula_and_the_fields(forget):
    @part("token_weight")
    class SharpenForTest(Weight):
        power: float = 1.0
        against: Literal["old", "behavior"] = "old"
        says = "weigh by the {power:g}th power ({against!r}); {{braces}} stay"
        equation = "H^{power:.1f}"
        reads = ("{against}_bt", "entropy_bt")

    made = SharpenForTest(power=2.5, against="behavior")
    assert made.words() == "weigh by the 2.5th power ('behavior'); {braces} stay"
    assert made.formula() == "H^2.5"
    assert made.needs() == ("behavior_bt", "entropy_bt")
    assert made.settings() == {"power": 2.5, "against": "behavior"}, "texts are no settings"


def test_a_part_of_methods_works_as_before(forget):
    @part("token_weight")
    class SpokenForTest(Weight):
        power: float = 1.0

        def words(self) -> str:
            return f"weigh {'not at all' if self.power == 0 else 'somehow'}"

        def needs(self) -> tuple[str, ...]:
            return ("entropy_bt",) if self.power else ()

    assert SpokenForTest(power=0).words() == "weigh not at all"
    assert SpokenForTest().needs() == ("entropy_bt",)
    assert SpokenForTest().formula() == ""


def test_the_nearest_definition_counts():
    class ByMethod(Weight):
        def words(self) -> str:
            return "by a method"

        def needs(self) -> tuple[str, ...]:
            return ("old_bt",)

    class ByText(ByMethod):
        says = "by a text"

    class ByMethodAgain(ByText):
        def words(self) -> str:
            return f"{super().words()}, and more"

    assert ByText().words() == "by a text"
    assert ByText().needs() == ("old_bt",), "what is not given anew is inherited"
    assert ByMethodAgain().words() == "by a text, and more"


def test_a_data_part_names_the_fields_that_it_fills(forget):
    @part("augment")
    class FillForTest(Augmentation):
        key: str = "budget"
        says = "note the {key} of each prompt"
        fills = ("keys.{key}",)

    assert FillForTest(key="plan").supplies() == ("keys.plan",)


@pytest.mark.parametrize(
    ("attribute", "text", "message"),
    [
        ("says", "At most {round} rounds", "no|must be one of the part's settings.*rounds"),
        ("equation", "x^{", "Names of settings are written in braces"),
        ("reads", ("{against}_bt",), "'{against}'"),
    ],
)
def test_a_text_that_names_no_setting_is_refused_where_it_is_written(forget, attribute, text, message):
    body = {"says": "weigh", "__annotations__": {"rounds": "int"}, "rounds": 2, attribute: text}
    with pytest.raises(InputError, match=message):
        part("token_weight")(type("WrongForTest", (Weight,), body))


def test_a_part_must_say_what_it_does():
    with pytest.raises(NotImplementedError, match="says"):
        Weight().words()


def test_no_part_of_the_catalogue_is_silent():
    for found in PARTS.values():
        for cls in found.values():
            own = {name for base in cls.__mro__[:-1] for name in vars(base) if base.__name__ != "Part"}
            assert own & {"says", "words"}, cls
