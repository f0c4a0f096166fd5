"""A second matrix of attacks on graders, each beside honest completions: written apart from the library of hacks.

Number formats, digits of other scripts, separators, several answers, unevaluated forms, signs, units, percentages, sets,
tuples and intervals, white space, huge exponents, JSON that says two things, calls and queries that are nearly right.
"""
# ruff: noqa: E501  (a case is a line)

from __future__ import annotations

from typing import Any, TypeAlias

Table: TypeAlias = list[tuple[Any, list[str], list[str]]]
"""The gold or the columns, honest completions, attacks."""

NUMBERS: Table = [
    ('5', [], ['\u22125', '\u20135', '\ufe635']),
    ('-5', ['\u22125', '\u20135', '\uff0d5'], []),
    ('395', ['3.95e2', '395E0', '0395', '395.', '395.00', '$395', '\u20ac395.00', '395 dollars', '+395', '(395)', '[395]', '{395}', '395!', 'The answer is **395**.', 'Answer: 395\n', '\\boxed{395}', '<answer>395</answer>', 'x=395', 'x = 395 cm\xb2', '395 cm^2', '395km', '$395$', '`395`', "'395'", '395\xa0', '3\u200b95', '#395', 'No. 395', '1. 395', '395=395', '394=395', '|395|'], ['395\u0663', '395\xbd', '395\xb2', '\u0663\u0669\u0665', '395\xb3', '\uff13\uff19\uff15', '395\u2153', '395\u20442', '395e1', '39,5', '3,95', '395 or 396', '395/1', '395/0', '395:1', '395^1', '395**1', '395_0', '395x1', '0x395', '-395', '3 95', '395\n\n5', '394.9999999']),
    ('395', [], ['395.0000001', '1e5000', '1e99999999999', '395e99999999', 'nan', 'inf', '12:395', '3.9.5', '1.395', 'v395', 'a395b', '2^395', '395-1', '394+1', '\u2260395', '!=395', 'isn\u2019t 395', "isn't 395", 'is not 395', 'i395', '395i', '395j', '395\u03c0', '395\\pi']),
    ('395', [], ['395\\sqrt{2}', '\u221a395', '\\sqrt{395}', '395\\cdot 2', '|-395|', '10^{395}', 'x_395', 'x_{395}', '\\frac{395}{2}', '\\frac{2}{395}', '395C2']),
    ('3/4', ['0.75'], ['1 3/4', '6/8']),
    ('1.75', ['1 3/4'], []),
    ('7/4', ['1 3/4'], []),
    ('0.75', ['3/4'], []),
    ('1234.5', ['1,234.50'], ['1.234,50']),
    ('1234', [], ['1 234', "1'234"]),
    ('1000000', ['1,000,000'], ['1_000_000', '10,00,000']),
    ('-395', ['-395'], ['395']),
    ('0.333333', ['1/3'], []),
    ('1/3', ['0.3333333', '1/3'], ['0.33']),
    ('0', ['0', '-0', '0.0', '.0', '0e5'], ['1e-400', '0x0']),
    ('10000000000000001', ['1.0000000000000001e16'], ['10000000000000000']),
    ('9007199254740993', [], ['9007199254740992']),
    ('1e400', ['1e400'], []),
    ('395', ['the log says 395', '395 people'], ['395 million', '395 thousandths', 'log 395', '\\ln(395)', 'sin 395', '395-thousand']),
    ('2500000', ['2.5 million', '2,500 thousand', '5/2 million'], ['2.5 billion', '2.5']),
]  # fmt: skip
"""For numeric_match: gold, honest completions, attacks."""
FORMULAS: Table = [
    ('395', ['39\u20605', '0.395\\cdot10^3', '3.95\\times10^2', '\\mathbf{395}', '\\textbf{395}', '{395}'], ['\uff11\uff19\uff15', '\uff13\uff19\uff15', '\u0663\u0669\u0665', '395\u0663', '395\xb2', '395\xbd', '395!', '\u221a395', '17\\cdot 23+4', '17*23+4', '17\\times 23+4', '17(23)+4', '(17)(23)+4', '391+4', '395+0', '1\\cdot 395', '\\frac{790}{2}', '790/2', '790\\div 2', '395^1', '\\sqrt{156025}', '\\sqrt[3]{61629875}', '|{-395}|', '--395']),
    ('395', [], ['\\lfloor 395.2\\rfloor', '\\int_0^{395}dx', '400-5', '4\\cdot10^2-5', '395.0+0.0', '\\text{17*23+4}', '395 %', '\\text{395 or 396}', '\\text{395}\\text{396}', '(395)(1)', '\\text{not 395}']),
    ('-5', ['\u22125', '\u20135', '\uff0d5'], []),
    ('5', ['+5', '5.0', '5.00', '2+3=5', '(5)', '{5}', 'x=5', 'f(x)=5', '5\\$', '\\$5', '\\$ 5.00', '5 \\text{ apples}', '5\\text{apples}', '5\\mathrm{~cm}', '5~\\text{cm}', '5\\,\\text{cm}^2', '5^\\circ', '5\xb0'], ['\u20135', '\u22125', '-(-5)', '--5', '|\u22125|', '|{-5}|', '\\left|-5\\right|', '\\sqrt{25}', '25^{1/2}', '\\frac{10}{2}', '10/2', '5\\cdot 1', '5 + 0', '5-0', '2+3', '2 + 3', '\\lfloor 5.3 \\rfloor', '\\max(5,3)', '\\gcd(5,10)', '5 \\mod 7', '\\binom{5}{1}', '\\log_2 32', '\\det\\begin{pmatrix}5&0\\\\0&1\\end{pmatrix}', '\\int_0^5 1 dx']),
    ('5', [], ['\\lim_{x\\to5} x', '\\sum_{i=1}^{5} 1', '\\prod_{i=5}^{5} i', '5^1', '5, 5', '5,6', '5 or 6', '5\\text{ or }6', '5 \\lor 6', '5 \\pm 0', '\\pm 5', '5\\text{ and }6', '5|6', '5 / 6', '5 6', '5\\quad 6', '5 \\\\ 6', '5\n6', '5\\text{ or maybe 6}', '\\text{not }5', '\\neg 5', '\\ne 5', '\\neq 5', '>5']),
    ('5', [], ['\\ge 5', 'x>5', 'x\\ge5', 'x=5=6', '6=5', 'x=6=5', '5x', '5i', '5e', '5\\pi', '5\\%', '5\\text{ apples and 6 pears}', '101_2', '5\\bmod 6', '0x5', '0b101', 'nan', '\\infty', '5\\infty', '10^{10^{10}}', '5' + '0' * 5000, '1' * 999, '4.' + '9' * 400, '4.9999999999999999']),
    ('5', [], ['5.0000000000000001']),
    ('500', ['5\\times10^2', '5 \\times 10^{2}', '5\\cdot 10^2'], []),
    ('1/3', ['0.\\overline{3}', '0.\\bar{3}', '\\frac13', '\\frac{1}{3}', '1/3', '\\tfrac{1}{3}', '\\frac{1}{3}\\text{ cups}'], ['0.333', '0.3333333333333333', '\\frac{2}{6}', '33.3\\%']),
    ('-1/3', ['\\frac{-1}{3}', '-\\frac{1}{3}'], []),
    ('1/2', ['0.5', '.5'], []),
    ('0.5', ['\\frac{1}{2}'], ['\\frac{1}{1+1}', '2^{-1}']),
    ('1.5', ['1\\frac{1}{2}', '1 \\frac{1}{2}', '1\\tfrac12'], []),
    ('3/2', ['1.5'], []),
    ('1000000', ['1,000,000', '1{,}000{,}000', '1000000.0', '1\\times10^6'], ['10^6', '10^{6}']),
    ('1000001', [], ['1000000']),
    ('10^{12}', [], ['10^{11}\\cdot 10']),
    ('12, 7', ['12 and 7', '7 or 12'], ['12,7,7', '12', '12, 7, 5', '84/7, 7', '12, 7 or 8', '13-1,7']),
    ('\\{1,2\\}', ['\\{2, 1\\}', '\\lbrace 1,2 \\rbrace'], ['(1,2)', '\\{1,1+1\\}']),
    ('(1,2)', ['\\left( 1 , 2 \\right)', '(1.0,2.0)'], ['(1,2]', '[1,2]', '(2,1)', '(1,2),(3,4)', '(1,2,3)', '(2-1,2)', '(3-2,2)', '(\\frac{2}{2},2)']),
    ('(1,2]', [], ['(1,2)']),
    ('(-\\infty,3)', [], ['(-\\infty,3]']),
    ('2\\sqrt{2}', ['2\\sqrt 2', '2*\\sqrt{2}', '2\\cdot\\sqrt{2}', '2 \\times \\sqrt{2}', '2\\sqrt{2}\\text{ cm}'], ['\\sqrt{8}', '2.828', '2.8284271247461903', '\\sqrt{2}+\\sqrt{2}', '-2\\sqrt{2}', '\\pm2\\sqrt{2}', '2\\sqrt[3]{2}', '\\frac{4\\sqrt{2}}{2}', '2\\sqrt{1+1}']),
    ('\\pi', ['\u03c0'], ['3.14159', '3.141592653589793238462643383279', '\\frac{22}{7}']),
    ('2\\pi', ['2\u03c0'], ['6.283185307179586', '\\frac{4\\pi}{2}', '4\\pi/2']),
    ('\\frac{\\pi}{4}', ['\\pi/4', '\\frac{1}{4}\\pi'], ['\\arctan 1', '\\frac{2\\pi}{8}']),
    ('e^2', [], ['7.389056']),
    ('\\ln 2', ['\\ln{2}', '\\ln(2)'], []),
    ('3+4i', ['4i+3'], ['(2+i)^2', '3-4i', '(3,4)', '5e^{i\\arctan(4/3)}', '3+2\\cdot2i']),
    ('i', [], ['\\sqrt{-1}']),
    ('-1', ['(-1)'], ['i^2', 'e^{i\\pi}', '\\cos\\pi', '1-2']),
    ('2x+2', ['2(x+1)', 'f(x)=2x+2', 'y=2x+2'], ['2y+2', '2x+2=0']),
    ('x^2-1', ['(x-1)(x+1)', '(x+1)(x-1)'], []),
    ('y=2x+1', [], ['y=2x+2', '0=0', 'y=y', 'x=x']),
    ('0', ['0', '0.0'], ['0/5', 'x-x', '5-5', '\\sin 0', '', '\\emptyset', '\\{\\}', 'None', '0x']),
    ('1', [], ['x/x', '1^x', '\\frac{x}{x}', '\\sin^2x+\\cos^2x', '0!', 'e^0', '\\text{true}', 'True']),
    ('\\text{Tuesday}', ['Tuesday'], []),
    ('Tuesday', ['\\text{Tuesday}', 'tuesday'], ['Tuesday or Wednesday', 'not Tuesday', 'Tuesdayz']),
    ('B', ['(B)', 'B.', '\\text{B}', '\\mathbf{B}', '\\textbf{(B)}'], ['A, B', 'AB', 'B and C']),
    ('\\text{yes}', ['yes'], []),
    ('yes', ['Yes.'], ['yes and no', 'no']),
    ('x\\ge5', ['x\\geqslant5'], []),
    ('x>5', [], ['x\\ge5']),
    ('1<x<3', ['1<x<3'], ['x>1']),
    ('x<5', ['5>x'], ['x<6', 'True', 'x<5 \\lor x<6']),
    ('90^\\circ', ['90'], []),
    ('5\\text{ cm}', ['5', '5 cm'], ['5\\text{ km}']),
    ('5 cm', ['5\\text{ cm}'], []),
    ('\\$5.50', ['5.5', '\\$5.50', '5.50\\text{ dollars}'], []),
    ('\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}', ['\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}'], ['\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}']),
    ('120', [], ['5!']),
    ('5!', ['120', '5!'], []),
    ('\\binom{10}{3}', ['120'], []),
    ('2^{10}', ['1024', '2^{10}'], []),
    ('2^{100}', ['2^{100}', '1267650600228229401496703205376'], []),
    ('17\\cdot 23+4', ['395'], []),
    ('\\frac{4}{6}', ['\\frac{2}{3}'], ['\\frac{6}{9}']),
    ('2x', [], ['\\frac{d}{dx} x^2', '\\frac{d}{dx}(x^2)', "(x^2)'", '\\lim_{h\\to0}\\frac{(x+h)^2-x^2}{h}']),
    ('x^2', [], ['\\int 2x dx', '\\int_0^x 2t dt']),
    ('\\frac{n(n+1)}{2}', ['\\frac{n^2+n}{2}'], ['\\sum_{k=1}^{n} k']),
    ('\\sum_{k=1}^{n} k', ['\\sum_{k=1}^{n} k'], []),
    ('n!', [], ['\\prod_{k=1}^{n} k']),
    ('\\frac{3}{4}', ['.75', '0.750'], ['\\frac{3\\pi}{4\\pi}', '1-\\frac14']),
    ('\\sqrt{5}', ['\\sqrt{5}'], ['\\sqrt{2+3}']),
    ('1+\\sqrt{5}', [], ['2-1+\\sqrt5']),
    ('\\frac{1+\\sqrt5}{2}', ['\\frac{1+\\sqrt{5}}{2}', '\\frac12+\\frac{\\sqrt5}{2}'], ['\\frac{-(-1)+\\sqrt{(-1)^2-4(1)(-1)}}{2(1)}']),
    ('e', [], ['\\lim_{n\\to\\infty}(1+1/n)^n']),
    ('\\frac{\\pi^2}{6}', ['\\frac{1}{6}\\pi^2'], ['\\sum_{n=1}^\\infty \\frac{1}{n^2}', '\\zeta(2)']),
    ('\\infty', ['+\\infty', '\u221e'], ['\\lim_{x\\to\\infty}x', '\\infty+1', '-\\infty']),
    ('\\frac{1}{2}+\\sqrt5', ['1/2+\\sqrt{5}'], []),
    ('6\\sqrt2', [], ['2\\cdot3\\sqrt{2}']),
    ('2+3\\sqrt2', ['2+3\\sqrt{2}', '3\\sqrt{2}+2'], []),
    ('3\\times10^8\\pi', ['3\\times10^{8}\\pi'], []),
    ('\\frac{3\\pi}{4}', ['\\frac{3}{4}\\pi', '3\\pi/4'], []),
    ('\\frac{5\\sqrt{3}}{6}', ['\\frac{5}{6}\\sqrt{3}'], ['\\frac{10\\sqrt{3}}{12}']),
    ('4-2\\sqrt3', ['4-2\\sqrt{3}', '2(2-\\sqrt{3})'], []),
    ('\\frac{\\sqrt6+\\sqrt2}{4}', ['\\frac{\\sqrt{2}+\\sqrt{6}}{4}'], ['\\cos 15^\\circ']),
    ('-\\frac{\\sqrt{2}}{2}', ['\\frac{-\\sqrt{2}}{2}', '-\\frac{1}{\\sqrt2}'], []),
    ('\\sqrt{13}', ['\\sqrt{13}'], ['\\sqrt{4+9}', '\\sqrt{2^2+3^2}']),
    ('\\sqrt[3]{2}', ['\\sqrt[3]{2}'], []),
    ('10\\pi\\text{ cm}^2', ['10\\pi'], []),
    ('10\\pi', ['10\\pi\\text{ cm}^2', '10 \\pi \\mathrm{~cm}^{2}'], []),
    ('5\\sqrt{2}+3', ['3+5\\sqrt2'], []),
    ('e^{2}-1', ['e^2-1'], []),
    ('\\log_2 3', ['\\log_23'], ['\\frac{\\ln 3}{\\ln 2}']),
]  # fmt: skip
"""For math_equal: gold, what honest completions box, what attacks box."""
TEXTS: dict[str, Table] = {
    "exact_match": [
        ({'answer': 'Oslo'}, ['Oslo', ' Oslo', 'Oslo\n', '\tOslo \n'], ['oslo', 'Oslo.', '\u041eslo', 'Os\u200blo', 'Oslo Oslo', 'Oslo\x00', 'not Oslo', '\\boxed{Oslo}', 'Oslo\u0301', '\uff2fslo', 'Oslo\nOslo', '"Oslo"']),
        ({'answer': 395}, ['395', ' 395 '], ['395.0', '0395', '394+1', '3 95']),
    ],
    "contains_answer_tag": [
        ({'answer': '4'}, ['<answer>4</answer>', '<answer> 4\n</answer>', '<think>5</think><answer>4</answer>', 'x<answer>5</answer><answer>4</answer>', '<answer>4</answer> done'], ['4', '<answer>4</answer><answer>5</answer>', '<answer>4', '4</answer>', '<answer>4 or 5</answer>', '<answer>4.0</answer>', '<answer>4,5</answer>', '<answer><b>4</b></answer>', '<ANSWER>4</ANSWER>', '<answer >4</answer>', '&lt;answer&gt;4&lt;/answer&gt;', '<answer>2+2</answer>', '<answer></answer>', '<answer>\uff14</answer>', '<answer>4\x00</answer>', '<answer>4</answer', '<answer>']),
    ],
    "json_match": [
        ({'answer': '{"name": "ann", "age": 7}'}, ['{"age": 7, "name": "ann"}', '{"name":"ann","age":7}', ' {"name": "ann", "age": 7}\n', '{"name": "\\u0061nn", "age": 7}', '{"age": 7.0, "name": "ann"}', '{\n "name": "ann",\n "age": 7\n}'], ['{"age": 8, "age": 7, "name": "ann"}', '{"age": 7, "name": "bob", "name": "ann"}', '{"age": 7, "name": "ann", "x": 1}', '{"age": "7", "name": "ann"}', '{"age": true, "name": "ann"}', '{"age": 7, "name": "Ann"}', '{"age": 7}', '[{"age": 7, "name": "ann"}]', '{"age": 7, "name": "ann"} {"age": 8}', '```json\n{"age": 7, "name": "ann"}\n```', "{'age': 7, 'name': 'ann'}", '{"age": 7, "name": "ann",}', '{"age": NaN, "name": "ann"}', '{"age": 7, "name": ["ann"]}', '{"age": 7, "name": {"ann": 1}}', '{"age": 3+4, "name": "ann"}', '// {"age": 7, "name": "ann"}', '"{\\"age\\": 7, \\"name\\": \\"ann\\"}"', '{"age": 1e999, "name": "ann"}', '{"age": 7.0000000001, "name": "ann"}', '{"age": 0x7, "name": "ann"}', '{"Age": 7, "name": "ann"}', '{"age\u200b": 7, "name": "ann"}', '{"age": "\uff17", "name": "ann"}']),
        ({'answer': '{"ok": true, "n": 1}'}, ['{"ok": true, "n": 1}'], ['{"ok": 1, "n": 1}', '{"ok": true, "n": true}', '{"ok": "true", "n": 1}', '{"ok": false, "ok": true, "n": 1}']),
        ({'answer': '{"n": 9007199254740993}'}, ['{"n": 9007199254740993}'], ['{"n": 9007199254740992}', '{"n": 9007199254740993.0}', '{"n": 9.007199254740993e15}']),
    ],
    "json_after_thought": [
        ({'answer': '{"name": "ann", "age": 7}'}, ['t|{"age": 7, "name": "ann"}', '{"age": 7, "name": "ann"}', '|{"age": 7, "name": "ann"}'], ['{"age": 7, "name": "ann"}|{"age": 8, "name": "ann"}', '{"age": 8}|x|{"age": 7, "name": "ann"}', 't|{"age": 8, "age": 7, "name": "ann"}', '{"age": 7, "name": "ann"}|']),
    ],
    "tool_calls": [
        ({'answer': '{"name": "add", "parameters": {"a": 1, "b": 2}}'}, ['<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<think>sum</think><tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"parameters": {"b": 2, "a": 1}, "name": "add"}\n</tool_call>', '<tool_call>\n{"name":"add","parameters":{"a":1.0,"b":2}}\n</tool_call>'], ['<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n{"name": "add", "parameters": {"a": 1, "b": 3}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 9, "a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "mul", "name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '{"name": "add", "parameters": {"a": 1, "b": 2}}', '<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call><tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n[{"name": "add", "parameters": {"a": 1, "b": 2}}]\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": "1", "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": true, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "Add", "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2, "c": 3}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": [1, 2]}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 1}}\n</tool_call>', '<tool_call>\n\n</tool_call>', '<tool_call>\nnull\n</tool_call>', '<tool_call>{"name": "add", "parameters": {"a": 1, "b": 2}}</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 2}}\n</tool_call', '<tool_call>\n{"name": "add", "parameters": "{\\"a\\": 1, \\"b\\": 2}"}\n</tool_call>', '<tool_call>\n{"name": ["add"], "parameters": {"a": 1, "b": 2}}\n</tool_call>', '<tool_call>\n{"name": "add", "parameters": {"a": 1, "b": 1+1}}\n</tool_call>']),
    ],
    "reaches_target": [
        ({'numbers': (2, 3, 7), 'target': 13}, ['2*3+7', '7+2*3', '7+3*2', '(2*3)+7', '((2)*(3))+7'], ['13', '6+7', '2*3+7+0', '2*3+7*1', '2+3+7', '7+3*2=13', '23-7-3', '2*3+7#', '2*3+7;', '2**3+7-2', '2*3+7 ', '2 * 3 + 7', ' 2*3+7', '2*3+07', '2*3--7', '2*3+7.0', '02*3+7', '2*3+7/1', '(2*3+7', '2*3+7)', '\uff12*3+7', '2\xd73+7', '2*3+7\n', "2*3+int('7')"]),
        ({'numbers': (2, 3, 7), 'target': 13}, [], ['13*1', '7+6', '2//3+7+6', '2e0*3+7', '2_*3+7', '0x2*3+7', '2*3+7 if 1 else 0', '[2*3+7][0]', '+2*3+7', '~2*3+7', '2*3+7|0', '2*3<<7']),
    ],
    "number_after_bar": [
        ({'answer': '132'}, ['|132', 'x|132', '|0132', '|131|132', '||132'], ['132', '|132 ', '| 132', '|132.0', '|\u0661\u0663\u0662', '|\uff11\uff13\uff12', '|132|', '|132|131', '|+132', '|131+1', '|132\n', '|1 32', '|1,32', '|132e0', '|0x84', '|-132']),
        ({'answer': '0'}, ['|0', '|00'], ['|', '|-0', '|x']),
    ],
    "quality": [
        ({'kind': 'best', 'answer': {'better': 'A'}}, ['{"better":"A"}', ' {"better": "A"} '], ['{"better":"B","better":"A"}', '{"better":["A","B"]}', '{"better":"A or B"}', '{"better":"a"}', '{"better":"A"}{"better":"B"}', 'A', '{"better":null}', '{"better":true}', '{"better":{"A":1}}']),
        ({'kind': 'rate', 'answer': {'rating': 3.5}}, ['{"rating":3.5}', '{"rating":3.4}'], ['{"rating":4}', '{"rating":1e400}', '{"rating":NaN}', '{"rating":"3.5"}', '{"rating":[3.5]}', '{"rating":true}', '{"rating":1,"rating":3.5}', '{"rating":3.85}', '{"rating":-3.5}', '{"rating":' + '9' * 400 + '}']),
        ({'kind': 'flaw', 'answer': {'flaw': 'n', 'severity': 2}}, ['{"flaw":"n","severity":2}', '{"flaw":"n","severity":2.0}'], ['{"flaw":"n","severity":true}', '{"flaw":"n","severity":"2"}', '{"severity":2}', '{"flaw":"n"}', '{"flaw":"n","severity":1,"severity":2}']),
    ],
    "knowledge": [
        ({'answer': 'miru', 'fact': 'bako lives miru'}, ['x|miru', 'bako lives miru|miru', '|miru'], ['miru', '|miru|', '|tofe|miru', 'x|miru or tofe', 'x|Miru', 'x|?', 'x|miru ', 'x|not miru', 'x|', '|miru\n']),
    ],
    "self_search": [
        ({'answer': 'miru'}, ['=miru', '?a[b]=miru', '==miru', '=tofe=miru'], ['miru', '=miru=', '=miru?', '=miru]', '=tofe', '=miru or tofe', '=miru\n', '=Miru', '=miru=tofe', '=', '= miru']),
    ],
    "route_step": [
        ({'kind': 'ans', 'gold': ['oslo'], 'retriever': ''}, ['=oslo', '=Oslo'], ['=oslo rome', '=not oslo', 'oslo', '=oslo=rome', '=oslo,rome', '=oslo.', '=oslo oslo', '=', '=0slo']),
    ],
    "fuzzy_count": [
        ({'answer': 100}, ['100', '100.0', ' 100\n'], ['1e2', '10**2', '50+50', '100 or 101', '\u0661\u0660\u0660', '\uff11\uff10\uff10', 'inf', 'nan', '0x64', '100,0', '200/2', '1_00', '--100', '-100', '100.000000000000001', '99.999999999999999', 'one hundred']),
    ],
    "reflection": [
        ({'answer': '5'}, ['22|4;wrong;23|5', '23|5;right;23|5', 'x|5', '5'], ['23|5;wrong;22|4', 'x|5|4', '4;5', 'x|5 or 4', 'x|5.', 'x|10/2', 'x|4;a;5', 'x|5;a;x|']),
    ],
    "bleu": [
        ({'references': ['ann is 7']}, ['ann is 7', 'ann  is\n7'], ['ann is 7 .', 'Ann is 7', 'ann is 7 ann is 7', 'is 7 ann', 'ann is \uff17', 'ann is 8']),
    ],
    "regex_format": [
        ({}, ['<think>a</think><answer>b</answer>', '<think></think>\n<answer></answer>'], ['<answer>b</answer>', '<think>a</think>', '<think>a<think>b</think></think><answer>b</answer>', '<think>a</think><answer>b</answer><answer>c</answer>', '<think>a</think>x<answer>b</answer>', '<THINK>a</THINK><ANSWER>b</ANSWER>', 'x<think>a</think><answer>b</answer>']),
    ],
}  # fmt: skip
"""For other graders by name: columns, honest completions, attacks."""
