r"""Reading mathematical answers as text: finding the answer in a completion, and the form of the answer.

The rule for completions, in this order:

1. the content of the last `\boxed{…}` (or `\fbox{…}`), if there is a box: earlier boxes do not count, and a last box
   that is never closed is not an answer;
2. the text of the last `<answer>…</answer>`, else the text after the last `####`;
3. the last formula between dollar signs, `\(…\)` or `\[…\]`;
4. the text after "answer is" or "answer:", to the end of the sentence;
5. the text itself if it is one line of at most 200 characters without words, else its last number.

A value after a negation ("not 5", "isn't $5$") is not an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 1000
"""Largest number of characters of an answer; a longer text is not an answer."""
DEEPEST = 40
MOST_DIGITS = 600

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
HASHES = re.compile(r"####[ \t]*([^\n]+)")
FORMULA = re.compile(
    r"(?<!\\)\$\$([^$]+)(?<!\\)\$\$|(?<!\\)\$([^$\n]+?)(?<!\\)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]",
    re.DOTALL,
)
SAID = re.compile(r"(?i:answer)[ \t]{0,9}(?:is|:|=)[ \t]{0,9}\**[ \t]{0,9}:?[ \t]{0,9}([^\s][^\n]{0,199})")
SENTENCE_ENDS = re.compile(
    r"[.!;](?:\s|\*|$)|,? (?:because|since|as|which|so|when|if|for|after|in (?:total|all)|altogether|overall)\b"
)
"""The end of a sentence, or of the part of it before a reason."""
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
LAST_NUMBER = re.compile(
    rf"(?<![\w.\\{{^_])(?<!\d-)(?:(?<![)\]}}])[-+\u2212])?(?:{NUMBER})(?:/\d+)?(?:\s*\\?%)?(?![\w\\^_({{!/]|[-.,]\d)"
)
WORD = re.compile(r"[^\W\d_]{3,}")
SHORT_WORD = re.compile(r"[^\W\d_]{2,}")
SPACING = re.compile(
    r"(\\\\)|\\[,;:! ]|~|\\(?:left|right|displaystyle|textstyle|bigl?|bigr?|Bigl?|Bigr?|limits|quad|qquad)(?![a-zA-Z])"
)
MINUS = dict.fromkeys(map(ord, "\u2212\u2013\ufe63\uff0d"), "-")
UNSEEN: dict[int, str] = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), "")
"""Invisible characters, which are removed."""
SIGNS = {
    **MINUS,
    **UNSEEN,
    0xD7: r"\times ",
    0xB7: r"\cdot ",
    0x2264: r"\le ",
    0x2265: r"\ge ",
    0x3C0: r"\pi ",
    0x221E: r"\infty ",
    0xB0: r"^\circ",
    0xF7: "/",
    0x2260: r"\ne ",
    0x222A: r"\cup ",
    0x2208: r"\in ",
}
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|operatorname)\s*\{([^{}]*)\}")
FONT = re.compile(r"\\(?:mathbf|textbf|mathrm|text|boldsymbol|mathit|textit|underline)\s*(?=\{.*\}\Z)")
NEGATION = re.compile(
    r"(?i:\b(?:(?:not|never|isn['\u2019]t|ain['\u2019]t|wasn['\u2019]t|cannot be|can['\u2019]t be)"
    r"(?: (?:equal(?: to)?|exactly|really))?|except|unlike|neither|nor|anything but"
    r"|(?:half|thirds?|quarters?|fifths?|tenths?|percent|per cent) (?:of )?(?:the )?|twice|thrice|double|triple)"
    r"|\u2260|\u2249|!=|<>|\\neq?|\\not ?=)[\s$(*:|=]*$"
)
PLAIN = re.compile(r"([-+]?)(?:(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*)(?:\\(?:overline|bar)\{(\d+)\}|\\bar(\d))?)?|\.(\d+))")
SCIENCE = re.compile(r"([-+]?\d+(?:\.\d+)?)(?:[eE]|(?:\\times|\\cdot|\*)10\^)(?:\{([-+]?\d+)\}|([-+]?\d+))")
FRACTION = re.compile(r"([-+]?)(\d*)\\[dtc]?frac(?:\{([-+]?\d+)\}|(\d))(?:\{([-+]?\d+)\}|(\d))|([-+]?\d+)/(\d+)")
DEGREE = re.compile(r"\^?\s*\{?\s*\\degrees?(?![a-zA-Z])\s*\}?")
PLAIN_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\s*(?:\(([^()]*)\)|(?=\{))")
"""A root as programs and plain text write it: sqrt(3)."""
RADICAL = re.compile(r"\u221a\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]|(?=\{)))")
EMPTY = re.compile(r"\\varnothing(?![a-zA-Z])|\u2205|\\\{\s*\\\}")
ROW_SPACE = re.compile(r"\\\\\[[-\d. ]{1,6}(?:pt|em|ex|mm|cm|in)\]")
"""The end of a matrix row with a space below it."""
THOUSANDS = re.compile(r"(?<=\d),\s*\\!\s*(?=\d{3}(?!\d))")
"""A thousands separator with the space after it taken back: `6,\\!000`."""
INVERSE = re.compile(r"\\(sin|cos|tan)\s*\^\s*(?:\{\s*-\s*1\s*\}|-1(?!\d))")
NUMERAL = re.compile(r"\(?([0-9][0-9A-Z]*)\)?_(?:\{(\d{1,2})\}|(\d))")
"""Digits with the base as their index: `1010_2`, `(4210)_{7}`."""
NUMBERED = re.compile(r"[A-Z][a-z]{2,}\.? \d{1,4}(?:, \d{4})?")
"""A name with a number, such as a date: June 20."""
RAISED = {"\u00b2": "2", "\u00b3": "3"}
RAISED_SIGN = re.compile(r"(?<=[a-zA-Z)}])[\u00b2\u00b3]")
DOLLARS = re.compile(r"([-+]?)\\\$\s*([-+]?[\d.,{}]+)")
REALS = re.compile(r"(?:[a-zA-Z]\s*\\in\s*)?(?:\\(?:mathbb|bf|mathbf)\s*(?:\{R\}|R)|\u211d)")
INTERVAL = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)
RELATION = re.compile(r"\s*(\\[lg]e(?![a-zA-Z])|<|>)\s*")
OR = re.compile(r"\s*(?:\\text\{\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])|\bor\b)\s*")
OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Several:
    """Elements between brackets or without any: "(" ")" a tuple or open interval, "{" "}" a set, "" "" a list."""

    left: str
    right: str
    elements: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """True if the order of the elements counts."""
        return self.left in ("(", "[", "]")


def answer_of(completion: str) -> str | None:
    """Return the answer in a completion by the module's rule; None if it has none."""
    boxes = [found.end() for found in BOX.finditer(completion)]
    if boxes:
        return _braced(completion, boxes[-1])
    if tags := TAG.findall(completion):
        return str(tags[-1]).strip()
    if hashes := HASHES.findall(completion):
        return str(hashes[-1]).strip()
    formulas = list(FORMULA.finditer(completion))
    if formulas:
        return None if negated(completion, formulas[-1].start()) else next(filter(None, formulas[-1].groups())).strip()
    said = SAID.findall(completion)
    if said:
        return SENTENCE_ENDS.split(said[-1])[0].strip(" *`,")
    return _unmarked(completion)


def whole_gold(gold: str) -> str:
    """Return a gold without dollar signs or a box around it; of a worked solution, its box or the text after `####`."""
    text = gold.strip()
    if BOX.search(text) or HASHES.search(text):
        return answer_of(text) or ""
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(left) : len(text) - len(right)]
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and "$" not in inner:
            return inner.strip()
    return text


def _unmarked(completion: str) -> str | None:
    text = completion.strip().strip("*` ")
    bare = re.sub(r"\\[a-zA-Z]+", "", TEXT.sub("", text[:201]))
    if text and len(text) <= 200 and "\n" not in text and not SHORT_WORD.search(bare):
        return text
    if text and len(text) <= 60 and "\n" not in text and not re.search(r"\d", text):
        return text  # a word or a name, not mathematics
    tail = completion[-20_000:]
    numbers = list(LAST_NUMBER.finditer(tail))
    return numbers[-1][0].strip() if numbers and not negated(tail, numbers[-1].start()) else None


def negated(text: str, place: int) -> bool:
    """Return whether a negation, or a word that takes a part or a multiple, ends right before position `place`."""
    return NEGATION.search(text[max(0, place - 30) : place]) is not None


def _braced(text: str, start: int) -> str | None:
    """Return the text between the brace at `start` and its closing brace; None if it is never closed."""
    depth = 0
    for place in range(start, min(len(text), start + 2 * LONGEST)):
        if text[place] in "{}" and _escaped(text, place):
            continue
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[start + 1 : place].strip()
    return None


def _escaped(text: str, place: int) -> bool:
    """Return whether a backslash makes a sign of the brace at `place`; two of them end a row of a matrix."""
    before = text[max(0, place - 20) : place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def tidy(text: str) -> str | None:
    """Return an answer without spacing, outer dollar signs and a final full stop; None if too long or deeply nested."""
    if len(text) > LONGEST or any(ord(sign) < 32 and sign not in "\n\t\r" for sign in text):
        return None
    text = DOLLARS.sub(r"\1\2\\text{ dollars}", text) if DOLLARS.fullmatch(text.strip()) else text
    text = "(-\\infty,\\infty)" if REALS.fullmatch(text.strip()) else ROW_SPACE.sub(r"\\\\ ", text)
    text = INVERSE.sub(r"\\arc\1 ", THOUSANDS.sub(",", RAISED_SIGN.sub(lambda found: f"^{{{RAISED[found[0]]}}}", text)))
    text = SPACING.sub(lambda found: found[1] or " ", text.translate(SIGNS))
    text = text.replace("{,}", ",").replace("\\$", "").strip()
    text = RADICAL.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}" if found[1] or found[2] else r"\sqrt", text)
    text = PLAIN_ROOT.sub(lambda found: f"\\sqrt{{{found[1]}}}" if found[1] is not None else r"\sqrt", text)
    text = DEGREE.sub(r"^\\circ ", EMPTY.sub(r"\\emptyset ", text))
    text = re.sub(r"\\(?:geqslant|geq)(?![a-zA-Z])", r"\\ge", re.sub(r"\\(?:leqslant|leq)(?![a-zA-Z])", r"\\le", text))
    text = re.sub(r"\\neq(?![a-zA-Z])", r"\\ne", re.sub(r"\\[dt]frac", r"\\frac", text))
    text = re.sub(r"\\([lr])brace(?![a-zA-Z]) ?", lambda found: "\\{" if found[1] == "l" else "\\}", text)
    text = re.sub(r"\s+", " ", text.strip("$ \n")).rstrip(". ").strip()
    return text if _depth(text) <= DEEPEST else None


def _depth(text: str) -> int:
    depth = most = 0
    for sign in text:
        depth += (sign in OPENING) - (sign in CLOSING)
        most = max(most, depth)
    return most


def as_words(text: str) -> str | None:
    """Return the normal form of an answer in words ("Tuesday", "\\text{no}", a choice "(B)"); None for mathematics."""
    inner = TEXT.sub(r"\1", text).strip()
    choice = re.fullmatch(r"\(?([A-Z])\)?", inner)
    if choice and (TEXT.search(text) or inner != text or inner.startswith("(") or inner == choice[1]):
        return choice[1].casefold()
    if NUMBERED.fullmatch(named := " ".join(inner.split())):
        return named.casefold()
    wordy = re.fullmatch(r"[^\W\d_][^\W\d_'\-]*(?:[ ,]+[^\W\d_][^\W\d_'\-]*)*", inner)
    if wordy and (TEXT.fullmatch(text.strip()) or WORD.search(inner) or inner.casefold() in ("no", "ok")):
        return " ".join(inner.casefold().split())
    return None


def unwrapped(text: str) -> str:
    """Return a value without brackets, braces or a font command around the whole of it."""
    text = FONT.sub("", text, count=1) if FONT.match(text) and _stays_open(FONT.sub("", text)[1:-1]) else text
    while text[:1] + text[-1:] in ("()", "{}") and _stays_open(text[1:-1]):
        text = text[1:-1].strip()
    return text


def elements_of(text: str) -> Several | None:
    """Return the elements of a tuple, interval, set or list; None for a single value."""
    left = right = ""
    inner = text
    for opening, closing in (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        body = text[len(opening) : len(text) - len(closing)]
        closes = text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing)
        if closes and _stays_open(body):
            left, right, inner = opening[-1], closing[-1], body
            break
    if PLAIN.fullmatch(inner.replace(" ", "")) and "," in inner and ", " not in inner:
        return None  # thousands: 1,234
    parts = _split(inner)
    if len(parts) == 1 and left != "{":
        return None
    if not left:
        parts = [piece for part in parts for piece in re.split(r"\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b", part)]
    return Several(left, right, tuple(part.strip() for part in parts if part.strip()))


def signs_apart(text: str) -> tuple[str, ...]:
    r"""Return the two values of an answer with one `\pm`, or the answer alone."""
    if len(re.findall(r"\\pm(?![a-zA-Z])", text)) != 1 or "\\mp" in text:
        return (text,)
    plus = re.sub(r"^\s*\\pm\s*", "", text)
    return tuple(re.sub(r"\\pm(?![a-zA-Z])\s*", sign, each) for sign, each in (("+", plus), ("-", text)))


def as_interval(text: str) -> str | None:
    r"""Return the interval that an inequality of one unknown describes, "[1,2)" for `1\le x<2`; None for another."""
    parts = [part.strip() for part in RELATION.split(text)]
    if len(parts) == 3 and not re.fullmatch("[a-zA-Z]", parts[0]):
        parts = [parts[2], _turned(parts[1]), parts[0]]
    if len(parts) == 3 and re.fullmatch("[a-zA-Z]", parts[0]) and parts[2]:
        _, relation, end = parts
        below = relation in ("<", r"\le")
        inside = relation.startswith("\\")
        return f"(-\\infty,{end}{']' if inside else ')'}" if below else f"{'[' if inside else '('}{end},\\infty)"
    if len(parts) != 5 or not re.fullmatch("[a-zA-Z]", parts[2]):
        return None
    low, first, _, second, high = (
        parts
        if parts[1] in ("<", r"\le")
        else [
            parts[4],
            _turned(parts[3]),
            parts[2],
            _turned(parts[1]),
            parts[0],
        ]
    )
    if not {first, second} <= {"<", r"\le"} or not low or not high:
        return None
    return f"{'[' if first != '<' else '('}{low},{high}{']' if second != '<' else ')'}"


def _turned(relation: str) -> str:
    return {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[relation]


def _stays_open(body: str) -> bool:
    depth = 0
    for sign in body:
        depth += (sign in OPENING) - (sign in CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str) -> list[str]:
    """Split at commas and semicolons outside of brackets, and at "and" or "or" between values without them."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in OPENING) - (sign in CLOSING)
        thousands = sign == "," and re.match(r",\d{3}(?!\d)", text[place:]) and re.search(r"\d$", text[:place])
        if sign in ",;" and depth == 0 and not thousands:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    if len(parts) == 1:
        parts = re.split(r"\s*(?:\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*", text)
    return parts


def numeral(text: str) -> tuple[str, int] | None:
    """Return the digits of a whole number, without leading zeros, and its base; None for any other text."""
    text = text.replace(" ", "")
    found = NUMERAL.fullmatch(text)
    digits, base = (found[1], int(found[2] or found[3])) if found else (text.replace(",", ""), 10)
    if not re.fullmatch("[0-9A-Z]{1,100}", digits) or not 2 <= base <= 36 or any(int(d, 36) >= base for d in digits):
        return None
    return digits.lstrip("0") or "0", base


def literal(text: str) -> Fraction | None:
    r"""Return the exact value of a number that is written out; None if something is left to compute.

    The accepted forms are integers (with thousands separators), decimals, repeating decimals `0.\overline{3}`,
    fractions in lowest terms, mixed numbers, `1.5\times10^{3}`, and any of these in per cent.
    """
    text = text.replace(" ", "")
    if len(text) > MOST_DIGITS or not text.isascii():
        return None
    percent = re.fullmatch(r"(.+?)\\?%", text)
    if percent:
        value = _written(percent[1])
        return None if value is None else value / 100
    return _written(text)


def _written(text: str) -> Fraction | None:
    if found := PLAIN.fullmatch(text):
        return _decimal(found)
    if found := SCIENCE.fullmatch(text):
        power = int(found[2] or found[3])
        return Fraction(found[1]) * Fraction(10) ** power if abs(power) <= MOST_DIGITS else None
    return _fraction(found) if (found := FRACTION.fullmatch(text)) else None


def _decimal(found: re.Match[str]) -> Fraction:
    sign, whole, behind, line, bar, only = found.groups()
    digits = only if whole is None else behind or ""
    value = Fraction(int((whole or "0").replace(",", ""))) + Fraction(int(digits or "0"), 10 ** len(digits))
    again = line or bar
    if again:
        value += Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(digits))
    return -value if sign == "-" else value


def _fraction(found: re.Match[str]) -> Fraction | None:
    sign, whole, top, short_top, bottom, short_bottom, over, under = found.groups()
    above, below = int(top or short_top or over), int(bottom or short_bottom or under)
    if below == 0:
        return None
    value = Fraction(above, below)
    if abs(value.denominator) != abs(below) or abs(below) == 1:
        return None  # not in lowest terms: something is left to compute
    if whole and (above < 0 or below < 0 or above >= below):
        return None
    value += int(whole or 0)
    return -value if sign == "-" else value
