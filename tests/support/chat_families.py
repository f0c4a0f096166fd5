"""Chat templates that do what those of current families do, over a small tokenizer with their control tokens.

Each is written anew from what the family's published template does with a message: where it puts tools, what it trims,
drops, moves or refuses. Texts that it adds (who the model is, how tools are used) are left out or shortened.
"""

# ruff: noqa: E501 (parts of templates)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from grouprl.policy import CausalPolicy

ALTERNATE = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
LLAMA_3 = (
    "{% for m in messages %}{{ bos_token if loop.first }}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_31 = (
    "{{ bos_token }}{% set told = '' %}{% if messages[0].role == 'system' %}{% set told = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% endif %}<|start_header_id|>system<|end_header_id|>\n\n"
    "{% if tools %}Environment: ipython\n{% endif %}Today Date: 26 Jul 2024\n\n{{ told }}<|eot_id|>"
    "{% if tools %}<|start_header_id|>user<|end_header_id|>\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\n\n'
    "{% for t in tools %}{{ t | tojson }}\n\n{% endfor %}{{ messages[0].content | trim }}<|eot_id|>"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.tool_calls is defined %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}"
    '{% endif %}<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}<tool_call>\n{\"name\": "
    '"{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
QWEN_RESULT = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\n<tool_response>\n"
    "{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
QWEN_TOOLS = (
    "{% set given = messages[0].content if messages[0].role == 'system' else WHO %}"
    "{% if tools %}<|im_start|>system\n{{ given }}\n\n# Tools\n<tools>"
    "{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>\nFor each function call, return a json object within "
    "<tool_call></tool_call> XML tags.<|im_end|>\n{% elif given %}<|im_start|>system\n{{ given }}<|im_end|>\n{% endif %}"
)
QWEN_25 = (
    QWEN_TOOLS.replace("WHO", "'You are Qwen.'") + "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}" + QWEN_CALLS + "<|im_end|>\n"
    "{% elif m.role == 'tool' %}" + QWEN_RESULT + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_3 = (
    QWEN_TOOLS.replace("WHO", "''") + "{% set ns = namespace(last=messages | length - 1, seek=true) %}"
    "{% for m in messages[::-1] %}{% if ns.seek and m.role == 'user' "
    "and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}"
    "{% set ns.seek = false %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}{% set said = m.content %}{% set thought = '' %}"
    "{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}{% elif '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n"
    "{{ said.lstrip('\n') }}{% else %}{{ said }}{% endif %}" + QWEN_CALLS + "<|im_end|>\n"
    "{% elif m.role == 'tool' %}" + QWEN_RESULT + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA_TURNS = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + ALTERNATE + "{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
)
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}" + GEMMA_TURNS + "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_3 = (
    "{{ bos_token }}{% set told = '' %}{% if messages[0].role == 'system' %}{% set told = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}" + GEMMA_TURNS + "{{ told if loop.first }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL_01 = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + ALTERNATE + ""
    "{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}{{ m.content }}"
    "{{ eos_token }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)


def _mistral(space: str) -> str:
    short = (
        "{% if ID is not defined or ID | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    )
    return (
        "{% set told = messages[0].content if messages[0].role == 'system' %}"
        "{% set messages = messages[1:] if messages[0].role == 'system' else messages %}"
        "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% for m in messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + ALTERNATE + "{% endif %}{% endfor %}{{ bos_token }}"
        "{% for m in messages %}{% if m.role == 'user' %}{% if tools and m == users[-1] %}[AVAILABLE_TOOLS]SP"
        "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]SP{{ told + '\n\n' if loop.last and told }}{{ m.content }}"
        "[/INST]{% elif m.tool_calls is defined %}[TOOL_CALLS]SP[{% for c in m.tool_calls %}"
        + short.replace("ID", "c.id")
        + '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ ", " if not loop.last }}'
        "{% endfor %}]{{ eos_token }}{% elif m.role == 'assistant' %}SP{{ m.content | trim }}{{ eos_token }}"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]SP{\"content\": {{ m.content | string }}, "
        + short.replace("ID", "m.tool_call_id")
        + '"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ).replace("SP", space)


def _known_roles(system: str, user: str, assistant: str, prompt: str, first: str = "") -> str:
    """A template that drops every message of another role without a word."""
    return (
        first
        + "{% for m in messages %}{% if m.role == 'system' %}"
        + system
        + "{% elif m.role == 'user' %}"
        + user
        + ""
        "{% elif m.role == 'assistant' %}" + assistant + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + prompt + "{% endif %}"
    )


PHI_3 = _known_roles(
    *(f"<|{r}|>\n{{{{ m.content }}}}<|end|>\n" for r in ("system", "user", "assistant")), "<|assistant|>\n"
)
PHI_4 = _known_roles(
    *(f"<|im_start|>{r}<|im_sep|>{{{{ m.content }}}}<|im_end|>" for r in ("system", "user", "assistant")),
    "<|im_start|>assistant<|im_sep|>",
)
PHI_4_MINI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.role == 'system' and m.tools is defined and m.tools is not none %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SMOLLM_2 = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are SmolLM.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM_3 = (
    "<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n## Custom Instructions\n\n"
    "{{ messages[0].content if messages[0].role == 'system' else 'You are SmolLM.' }}\n\n"
    "{% if xml_tools or tools %}### Tools\n<tools>\n{% for t in xml_tools or tools %}{{ t | tojson }}\n{% endfor %}</tools>\n"
    "Write <tool_call>...</tool_call>.\n\n{% endif %}<|im_end|>\n"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content.lstrip('\n') }}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OLMO_2 = _known_roles(
    "<|system|>\n{{ m.content }}\n",
    "<|user|>\n{{ m.content }}\n",
    "<|assistant|>\n{{ m.content }}{{ eos_token }}{{ '\n' if not loop.last }}",
    "<|assistant|>\n",
    first="{{ bos_token }}",
)
DEEPSEEK_CALL = (
    "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name }}\n```json\n{{ c.function.arguments + '' }}\n```"
    "<｜tool▁call▁end｜>"
)
DEEPSEEK_3 = (
    "{% set ns = namespace(tool=false, opened=false, calls=false) %}{{ bos_token }}"
    "{% for m in messages if m.role == 'system' %}{{ '\n\n' if not loop.first }}{{ m.content }}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.tool = false %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' and 'tool_calls' in m %}{% set ns.tool = false %}<｜Assistant｜>{{ m.content or '' }}"
    "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}{{ '\n' if not loop.first }}" + DEEPSEEK_CALL + "{% endfor %}"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    "{% elif m.role == 'assistant' %}{% if ns.tool %}<｜tool▁outputs▁end｜>{{ m.content }}<｜end▁of▁sentence｜>"
    "{% set ns.tool = false %}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}"
    "{% elif m.role == 'tool' %}{% set ns.tool = true %}{{ '<｜tool▁outputs▁begin｜>' if not ns.opened }}"
    "{% set ns.opened = true %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}"
    "{% if ns.tool %}<｜tool▁outputs▁end｜>{% elif add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
DEEPSEEK_31 = (
    "{% set ns = namespace(tool=false, asked=false) %}{{ bos_token }}"
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% if tools %}\n\n## Tools\n"
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.tool = false %}{% set ns.asked = true %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜></think>' if ns.asked }}{% set ns.asked = false %}"
    "{% if m.tool_calls %}{{ m.content or '' }}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>"
    "{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    "{% else %}{{ m.content if ns.tool else m.content.split('</think>', 1)[-1] }}{% endif %}{% set ns.tool = false %}"
    "<｜end▁of▁sentence｜>{% elif m.role == 'tool' %}{% set ns.asked = false %}{% set ns.tool = true %}"
    "<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and ns.asked and not ns.tool %}<｜Assistant｜></think>{% endif %}"
)
GRANITE_3 = (
    "{% if messages[0].role != 'system' %}<|start_of_role|>system<|end_of_role|>You are Granite.<|end_of_text|>\n{% endif %}"
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n"
    "{% if tools and m.role == 'system' or tools and loop.first %}<|start_of_role|>available_tools<|end_of_role|>"
    "{{ tools | tojson }}<|end_of_text|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT.\n# Valid channels: analysis, commentary, final.<|end|>"
    "{% set told = '' %}{% if messages[0].role in ('system', 'developer') %}{% set told = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% if told or tools %}<|start|>developer<|message|>{{ told }}"
    "{% if tools %}# Tools\n\nnamespace functions {\n{% for t in tools %}// {{ t.function.description }}\n"
    "type {{ t.function.name }} = (_: { {% for k in t.function.parameters.properties %}{{ k }}: any, {% endfor %}}) => any;\n"
    "{% endfor %}}{% endif %}<|end|>{% endif %}{% set ns = namespace(name=none) %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if '<|channel|>analysis<|message|>' in (m.content or '') or "
    "'<|channel|>final<|message|>' in (m.content or '') %}"
    "{{ raise_exception('You have passed a message containing <|channel|> tags in the content field.') }}{% endif %}"
    "{% if m.tool_calls %}{% set later = namespace(final=false) %}{% for x in messages[loop.index:] %}"
    "{% if x.role == 'assistant' and not x.tool_calls %}{% set later.final = true %}{% endif %}{% endfor %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking with tool calls!') }}"
    "{% elif (m.content or m.thinking) and not later.final %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.content or m.thinking }}<|end|>{% endif %}{% set ns.name = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ ns.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif loop.last and not add_generation_prompt %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% set ns.name = none %}{% endif %}"
    "{% elif m.role == 'tool' %}{% if ns.name is none %}{{ raise_exception('Message has tool role, but there was no "
    "previous assistant message with a tool call!') }}{% endif %}<|start|>functions.{{ ns.name }} to=assistant<|channel|>"
    "commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GLM_45 = (
    "[gMASK]<sop>{% if tools %}<|system|>\n# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>\n"
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>"
    "{% endif %}{% set ns = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.user = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>\n{{ m.content }}{% elif m.role == 'system' %}<|system|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}{% set said = m.content %}{% set thought = '' %}"
    "{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}{% elif '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|assistant|>\n<think>{{ thought.strip() if loop.index0 > ns.user }}</think>"
    "{{ '\n' + said.strip() if said.strip() }}{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>' if loop.first or messages[loop.index0 - 1].role != 'tool' }}\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SEED_OSS = (
    "{% if tools %}{{ bos_token }}system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}Write <seed:tool_call>\n<function=name>\n<parameter=key>value"
    "</parameter>\n</function>\n</seed:tool_call>{{ eos_token }}{% elif messages[0].role == 'system' %}{{ bos_token }}system\n"
    "{{ messages[0].content }}{{ eos_token }}{% endif %}"
    "{% set ns = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}{{ bos_token }}assistant\n"
    "{% if m.reasoning_content and loop.index0 > ns.user %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<seed:tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v if v is string else v | tojson }}</parameter>\n"
    "{% endfor %}</function>\n</seed:tool_call>{% endfor %}{{ eos_token }}"
    "{% elif m.role != 'system' or not loop.first %}{{ bos_token }}{{ m.role }}\n{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
NEMOTRON_NANO = (
    "<SPECIAL_10>System\n{{ messages[0].content if messages[0].role == 'system' }}"
    '{% if tools %}\n\nUse <TOOLCALL>[{"name": "tool", "arguments": {}}]</TOOLCALL>\n<AVAILABLE_TOOLS>{{ tools | tojson }}'
    "</AVAILABLE_TOOLS>{% endif %}\n{% for m in messages %}{% if m.role == 'user' %}<SPECIAL_11>User\n{{ m.content }}\n"
    "{% elif m.role == 'tool' %}{{ '<SPECIAL_11>User\n<TOOL_RESPONSE>[' if messages[loop.index0 - 1].role != 'tool' else ', ' }}"
    "{{ m.content }}{{ ']</TOOL_RESPONSE>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}"
    "{% elif m.role == 'assistant' %}<SPECIAL_11>Assistant\n{{ (m.content or '').split('</think>')[-1].strip() }}"
    '{% if m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]</TOOLCALL>{% endif %}\n<SPECIAL_12>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<SPECIAL_11>Assistant\n{% endif %}"
)
_COHERE = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
COMMAND_7B = (
    "{{ bos_token }}"
    + _COHERE.format("SYSTEM")
    + "# Preamble\n{% if tools %}Tools:\n{% for t in tools %}{{ t | tojson }}\n"
    "{% endfor %}{% endif %}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}<|END_OF_TURN_TOKEN|>"
    "{% set ns = namespace(number=0) %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    + _COHERE.format("SYSTEM")
    + "{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'user' %}" + _COHERE.format("USER") + "{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'assistant' %}" + _COHERE.format("CHATBOT") + "{% if m.tool_calls %}{% if m.reasoning_content %}"
    "<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}<|START_ACTION|>[\n{% for c in m.tool_calls %}"
    '    {"tool_call_id": "{{ ns.number }}", "tool_name": "{{ c.function.name }}", "parameters": '
    "{{ c.function.arguments | tojson }}}{{ ',' if not loop.last }}\n{% set ns.number = ns.number + 1 %}{% endfor %}"
    "]<|END_ACTION|>{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'tool' %}"
    + _COHERE.format("SYSTEM")
    + '<|START_TOOL_RESULT|>[{"results": {{ m.content | tojson }}}]'
    "<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + _COHERE.format("CHATBOT") + "{% endif %}"
)
COMMAND_R_PLUS = (
    "{{ bos_token }}{% if tools or messages[0].role == 'system' %}"
    + _COHERE.format("SYSTEM")
    + "{{ messages[0].content if messages[0].role == 'system' }}{% if tools %}\n## Available Tools\n{% for t in tools %}"
    "{{ t | tojson }}\n{% endfor %}Write 'Action:' followed by a json-formatted list of actions.{% endif %}"
    "<|END_OF_TURN_TOKEN|>{% endif %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    + _COHERE.format("SYSTEM")
    + "{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'user' %}" + _COHERE.format("USER") + "{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'assistant' %}" + _COHERE.format("CHATBOT") + "{{ m.content or '' }}{% if m.tool_calls %}"
    'Action: ```json\n[\n{% for c in m.tool_calls %}    {\n        "tool_name": "{{ c.function.name }}",\n        '
    "\"parameters\": {{ c.function.arguments | tojson }}\n    }{{ ',' if not loop.last }}\n{% endfor %}]\n```{% endif %}"
    "<|END_OF_TURN_TOKEN|>{% elif m.role == 'tool' %}"
    + _COHERE.format("SYSTEM")
    + "<results>\n{{ m.content }}</results>"
    "<|END_OF_TURN_TOKEN|>{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + _COHERE.format("CHATBOT")
    + "{% endif %}"
)
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
FUNCTIONARY_31 = (
    "{{ bos_token }}{% if tools %}" + _HEADER.format("system") + "{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Reply <function=name>{"key": "value"}</function><|eot_id|>{% endif %}{% for m in messages %}'
    "{% if m.role == 'assistant' %}"
    + _HEADER.format("assistant")
    + "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>{% endfor %}"
    "{{ '<|eom_id|>' if m.tool_calls else '<|eot_id|>' }}{% else %}"
    + _HEADER.format("{{ 'ipython' if m.role == 'tool' else m.role }}")
    + "{{ m.content }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + _HEADER.format("assistant")
    + "{% endif %}"
)
FUNCTIONARY_32 = (
    "{{ bos_token }}{% if tools %}" + _HEADER.format("system") + "{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|eot_id|>{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}"
    + _HEADER.format("assistant")
    + "{% if m.content %}>>>all\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}>>>{{ c.function.name }}\n"
    "{{ c.function.arguments | tojson }}{% endfor %}<|eot_id|>{% else %}"
    + _HEADER.format("{{ m.role }}")
    + "{{ m.content }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + _HEADER.format("assistant")
    + ">>>{% endif %}"
)
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
SMALL_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096}


@dataclass(frozen=True)
class Family:
    """A family: its template, its control tokens, those that end a turn, its syntax of calls, its architecture."""

    template: str
    tokens: tuple[str, ...]
    ends: tuple[str, ...]
    syntax: str = "hermes"
    architecture: Any = LlamaConfig
    begins: str | None = None


HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML = ("<|im_start|>", "<|im_end|>")
INST = ("<s>", "</s>", "[INST]", "[/INST]")
TOOLS = ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
PHI = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TURN = ("<bos>", "<start_of_turn>", "<end_of_turn>")
SENTENCE = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
CHANNELS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
ROLES = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>")
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
SEED = ("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>")
NANO = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")
COHERE = (
    *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
    *("<|CHATBOT_TOKEN|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
)
EOM = (*HEADERS, "<|eom_id|>")
CHAT_FAMILIES = {
    "llama 3": Family(LLAMA_3, HEADERS, HEADERS[3:], begins=HEADERS[0]),
    "llama 3.1": Family(LLAMA_31, HEADERS, HEADERS[3:], "llama", begins=HEADERS[0]),
    "qwen 2.5": Family(QWEN_25, CHATML, CHATML[1:], architecture=Qwen2Config),
    "qwen 3": Family(QWEN_3, CHATML, CHATML[1:], architecture=Qwen3Config),
    "gemma 2": Family(GEMMA_2, TURN, TURN[2:], architecture=Gemma2Config, begins=TURN[0]),
    "gemma 3": Family(GEMMA_3, TURN, TURN[2:], architecture=Gemma2Config, begins=TURN[0]),
    "mistral 0.1": Family(MISTRAL_01, INST, ("</s>",), architecture=MistralConfig, begins="<s>"),
    "mistral 0.3": Family(_mistral(" "), INST + TOOLS, ("</s>",), "mistral", MistralConfig, "<s>"),
    "mistral nemo": Family(_mistral(""), INST + TOOLS, ("</s>",), "mistral", MistralConfig, "<s>"),
    "phi 3": Family(PHI_3, PHI, ("<|end|>",), architecture=Phi3Config),
    "phi 4": Family(PHI_4, (*CHATML, "<|im_sep|>"), CHATML[1:], architecture=Phi3Config),
    "phi 4 mini": Family(PHI_4_MINI, (*PHI, "<|tool|>", "<|/tool|>"), ("<|end|>",), "phi", Phi3Config),
    "smollm 2": Family(SMOLLM_2, CHATML, CHATML[1:]),
    "smollm 3": Family(SMOLLM_3, CHATML, CHATML[1:], architecture=SmolLM3Config),
    "olmo 2": Family(OLMO_2, ("<|endoftext|>",), ("<|endoftext|>",), architecture=Olmo2Config, begins="<|endoftext|>"),
    "deepseek 3": Family(DEEPSEEK_3, SENTENCE, SENTENCE[1:2], "deepseek", begins=SENTENCE[0]),
    "deepseek 3.1": Family(DEEPSEEK_31, SENTENCE, SENTENCE[1:2], "deepseek_v31", begins=SENTENCE[0]),
    "granite 3": Family(GRANITE_3, ROLES, ROLES[2:3], "granite", GraniteConfig),
    "gpt-oss": Family(HARMONY, CHANNELS, CHANNELS[4:], "harmony", GPT2Config),
    "seed-oss": Family(SEED_OSS, SEED, SEED[1:2], "seed", begins=SEED[0]),
    "nemotron nano": Family(NEMOTRON_NANO, NANO, NANO[2:], "nemotron"),
    "command r7b": Family(COMMAND_7B, COHERE, COHERE[2:3], "command", begins=COHERE[0]),
    "command r+": Family(COMMAND_R_PLUS, COHERE[:6], COHERE[2:3], "command_r", begins=COHERE[0]),
    "functionary 3.1": Family(FUNCTIONARY_31, EOM, ("<|eom_id|>", "<|eot_id|>"), "functionary_31", begins=EOM[0]),
    "functionary 3.2": Family(FUNCTIONARY_32, HEADERS, HEADERS[3:], "functionary_32", begins=HEADERS[0]),
    "glm 4.5": Family(GLM_45, GLM, ("<|user|>", "<|observation|>", "<|endoftext|>"), "glm"),
}


def family_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """Bytes, a few pairs of letters, and the control tokens of a family; the template is set."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "h"), ("i", "n"), ("e", "r"), ("Ġ", "t")]
    vocabulary = {token: i for i, token in enumerate(["<pad>", *letters, *map("".join, pairs)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token=family.begins,
        eos_token=family.ends[-1],
        additional_special_tokens=list(family.tokens),
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = family.template
    return made


def family_policy(name: str, seed: int = 0) -> CausalPolicy:
    """A small random model of a family's architecture, with its tokenizer and template."""
    family = CHAT_FAMILIES[name]
    tokenizer = family_tokenizer(family)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    sizes = SMALL_GPT if family.architecture is GPT2Config else SMALL
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": ends, "vocab_size": len(tokenizer)}
    config = family.architecture(**sizes, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = ends
    return CausalPolicy(model, tokenizer)
