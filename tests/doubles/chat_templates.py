"""Chat templates reduced to the essentials of well-known ones: how they format tools, calls, results and thoughts."""

from __future__ import annotations

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nFor each call return <tool_call>\\n{...}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.strip() }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- "<|start_header_id|>user<|end_header_id|>\\n\\nRespond with a JSON for a function call in the format " }}
    {{- '{"name": function name, "parameters": dictionary of argument name and its value}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls|length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] + ', "id": "' + call.id + '"}' + (']' if loop.last else ', ') }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'assistant' %}{{- message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) }}
        {{- ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

DEEPSEEK = """\
{{ bos_token }}{% for message in messages %}\
{% if message['role'] == 'user' %}{{ '<User>' + message['content'] }}{% endif %}\
{% if message['role'] == 'assistant' and message['content'] is none %}\
{% for tool in message['tool_calls'] %}{% set called = tool['function'] %}\
{{ '<Call>' + called['name'] + '\\n' + called['arguments'] }}\
{% endfor %}{% endif %}\
{% if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{ '<Assistant>' + content }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<Assistant><think>\\n' }}{% endif %}"""

HARMONY = """\
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort or "medium") + "<|end|>" }}
{%- if tools %}
    {{- "<|start|>developer<|message|># Tools\\nnamespace functions {\\n" }}
    {%- for tool in tools %}{{- "type " + tool.function.name + " = (_: any) => any;\\n" }}{%- endfor %}
    {{- "}<|end|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and 'tool_calls' in message %}
        {%- set later = namespace(is_answered=false) %}
        {%- for one in messages[loop.index:] if one.role == 'assistant' and 'tool_calls' not in one %}
            {%- set later.is_answered = true %}
        {%- endfor %}
        {%- if message.content and message.thinking %}
            {{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls!") }}
        {%- elif message.content and not later.is_answered %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
        {%- elif message.thinking and not later.is_answered %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments | tojson }}{{- "<|call|>" }}
    {%- elif message.role == 'tool' %}
        {{- "<|start|>functions." + message.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content | tojson }}{{- "<|end|>" }}
    {%- elif message.role == 'assistant' %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- else %}{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}
"""

# ---- Muse Glimmer: messages to recipients, one for each call
MUSE = """\
{%- macro calls(tool) -%}
    {{- '<atem:function_calls>\\n<atem:invoke name="' + tool.function.name + '">\\n' -}}
    {%- for k, v in tool.function.arguments.items() -%}
        {{- '<atem:parameter name="' + k + '">' -}}
        {{- v if v is string else (v | tojson) -}}{{- '</atem:parameter>\\n' -}}
    {%- endfor -%}
    {{- '</atem:invoke>\\n</atem:function_calls>' -}}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|start|>system<|message|>// Function schemas' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool.function | tojson) -}}{%- endfor -%}{{- '<|eot|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|start|>tool ' + message.name + '<|message|><tool_output name="' + message.name + '">\\n' -}}
        {{- message.content + '\\n</tool_output><|eot|>' -}}
    {%- elif message.role == 'assistant' -%}
        {%- if message.reasoning_content -%}
            {{- '<|start|>assistant to=self<|message|>' + message.reasoning_content + '<|eom|>' -}}
        {%- endif -%}
        {%- if message.tool_calls -%}
            {%- for tool in message.tool_calls -%}
                {{- '<|start|>assistant to=' + tool.function.name + '<|message|>' + calls(tool) -}}
                {{- '<|eot|>' if loop.last else '<|eom|>' -}}
            {%- endfor -%}
        {%- else -%}{{- '<|start|>assistant to=user<|message|>' + message.content + '<|eot|>' -}}{%- endif -%}
    {%- else -%}{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|eot|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""

# ---- Hy3: every tag with a suffix, which the template puts there
HY = """\
{%- set HYTK = ':opensource' %}
{%- set begin, end, sep = '<tool_call{}>'.format(HYTK), '</tool_call{}>'.format(HYTK), '<tool_sep{}>'.format(HYTK) %}
{%- set think, thought = '<think{}>'.format(HYTK), '</think{}>'.format(HYTK) %}
{%- if tools %}
    {{- '<tools>\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<｜hy_Assistant{}｜>'.format(HYTK) + think + (message.reasoning_content or '') + thought }}
        {{- message.content }}
        {%- if message.tool_calls %}
            {{- '<tool_calls{}>'.format(HYTK) + '\\n' }}
            {%- for tool in message.tool_calls %}
                {{- begin + tool.function.name + sep + '\\n' }}
                {%- for key, value in tool.function.arguments.items() %}
                    {{- '<arg_key{}>'.format(HYTK) + key + '</arg_key{}>'.format(HYTK) + '\\n' }}
                    {{- '<arg_value{}>'.format(HYTK) + (value if value is string else (value | tojson)) }}
                    {{- '</arg_value{}>'.format(HYTK) + '\\n' }}
                {%- endfor %}
                {{- end + '\\n' }}
            {%- endfor %}
            {{- '</tool_calls{}>'.format(HYTK) }}
        {%- endif %}
        {{- '<｜hy_eos{}｜>'.format(HYTK) }}
    {%- elif message.role == 'tool' %}
        {{- '<tool_response{}>'.format(HYTK) + '\\n' + message.content + '\\n</tool_response{}>'.format(HYTK) }}
    {%- else %}{{- '<｜hy_User{}｜>'.format(HYTK) + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜hy_Assistant{}｜>'.format(HYTK) + think }}
    {%- if reasoning_effort is not defined or reasoning_effort == 'no_think' %}{{- thought }}{%- endif %}
{%- endif %}
"""

# ---- MiniCPM 5: tags, and what could be taken for one stands in quotes
MINICPM = """\
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\n\\nTool usage guidelines:\\n<function name="function-name"><param name="param-name">' }}
    {{- 'param-value</param></function><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for tool in message.tool_calls %}
            {%- if not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<function name="' ~ tool.function.name ~ '">' }}
            {%- for name, value in tool.function.arguments.items() %}
                {{- '<param name="' ~ name ~ '">' }}
                {%- if value is string and ('<' in value or '&' in value or '\\n' in value) %}
                    {{- '<![CDATA[' + value + ']]>' }}
                {%- else %}{{- value }}{%- endif %}
                {{- '</param>' }}
            {%- endfor %}
            {{- '</function>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""

# ---- Apertus: calls by their names, and results in the same turn
APERTUS = """\
{%- set inner_token, outer_token = '<|inner_prefix|>', '<|inner_suffix|>' -%}
{{ '<|developer_start|>Tool Capabilities:' }}
{%- for tool in tools or [] %}{{- '\\ntype ' + tool.function.name + ' = (_: any) => any;' }}{%- endfor %}
{{- '<|developer_end|>' }}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|assistant_start|>' + (message.content or '') -}}
        {%- if message.tool_calls -%}
            {{- '<|tools_prefix|>[' -}}
            {%- for tool in message.tool_calls -%}
                {{- '{"' + tool.function.name + '": ' + tool.function.arguments | tojson + '}' -}}
                {{- '' if loop.last else ', ' -}}
            {%- endfor -%}
            {{- ']<|tools_suffix|>' -}}
        {%- else -%}{{- '<|assistant_end|>' -}}{%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or not (loop.previtem.tool_calls or loop.previtem.role == 'tool') -%}
            {{- raise_exception('a result outside of an answer') -}}
        {%- endif -%}
        {{- '[' + message.content + ']' -}}
    {%- else -%}{{- '<|' + message.role + '_start|>' + message.content + '<|' + message.role + '_end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""

# ---- Solar: messages that are thought, said, or calls
SOLAR = """\
{{- '<|begin|>system<|content|>## Tools' }}
{%- for tool in tools %}{{- tool.function | tojson }}{%- endfor %}{{- '<|end|>' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.reasoning %}{{- '<|begin|>assistant<|think|>' + message.reasoning + '<|end|>' }}{%- endif %}
        {%- if message.tool_calls %}
            {{- '<|begin|>assistant<|tool_calls|>' }}
            {%- for tool in message.tool_calls %}
                {{- '<|tool_call:begin|>' + tool.id }}
                {{- '<|tool_call:name|>' + tool.function.name + '<|tool_call:args|>' }}
                {{- tool.function.arguments | tojson }}{{- '<|tool_call:end|>' }}
            {%- endfor %}
            {{- '<|calls|>' }}
        {%- else %}{{- '<|begin|>assistant<|content|>' + message.content + '<|end|>' }}{%- endif %}
    {%- elif message.role == 'tool' %}
        {{- '<|begin|>tool<|tool_response|>' + message.content + '<|end|>' }}
    {%- else %}{{- '<|begin|>' + message.role + '<|content|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant' }}{%- endif %}
"""

# ---- Gemma 4: results in the model's turn, and a text after them
GEMMA = """\
{{- bos_token }}
{%- set ns = namespace(is_open=false, has_results=false) %}
{%- if tools or messages[0].role == 'system' %}
    {{- '<|turn>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}
    {%- for tool in tools or [] %}{{- '<|tool>declaration:' + tool.function.name + '<tool|>' }}{%- endfor %}
    {{- '<turn|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'tool' and not (loop.first and message.role == 'system') %}
        {%- set role = 'model' if message.role == 'assistant' else message.role %}
        {%- if ns.is_open and role != 'model' %}{{- '<turn|>\\n' }}{%- endif %}
        {%- if not ns.is_open or role != 'model' %}{{- '<|turn>' + role + '\\n' }}{%- endif %}
        {%- if message.reasoning and message.tool_calls %}
            {{- '<|channel>thought\\n' + message.reasoning + '\\n<channel|>' }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- '<|tool_call>call:' + call.function.name + '{' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- key + ':' + (('<|"|>' + value + '<|"|>') if value is string else (value | tojson)) }}
                {{- '' if loop.last else ',' }}
            {%- endfor %}
            {{- '}<tool_call|>' }}
        {%- endfor %}
        {%- set scan = namespace(stopped=not message.tool_calls) %}
        {%- set ns.has_results = false %}
        {%- for result in messages[loop.index:] %}
            {%- set scan.stopped = scan.stopped or result.role != 'tool' %}
            {%- if not scan.stopped %}
                {%- set ns.has_results = true %}
                {{- '<|tool_response>response:' + (result.name or 'unknown') }}
                {{- '{value:<|"|>' + result.content + '<|"|>}<tool_response|>' }}
            {%- endif %}
        {%- endfor %}
        {{- message.content | trim }}
        {%- set ns.is_open = ns.has_results and not message.content %}
        {%- if not ns.is_open %}{{- '<turn|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.has_results %}
    {{- '<|turn>model\\n' }}
    {%- if not enable_thinking %}{{- '<|channel>thought\\n<channel|>' }}{%- endif %}
{%- endif %}
"""

# ---- Mistral: user and assistant alternate, where messages with calls and results do not count
_ALTERNATING = """\
{{- bos_token }}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- if messages[0].role == 'system' %}{{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in rest if message.role != 'tool' and not message.tool_calls %}
    {%- if message.role == 'system' %}{{- raise_exception('a system message must come first') }}{%- endif %}
    {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate') }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
"""
MISTRAL_SMALL = (
    _ALTERNATING
    + """\
{%- for message in rest %}
    {%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id }}
            {{- '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}{{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
)
MINISTRAL = (
    _ALTERNATING
    + """\
{#- [THINK] [/THINK] #}
{%- for message in rest %}
    {%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- elif not message.content and not message.tool_calls %}{{- raise_exception('an assistant must say something') }}
    {%- else %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
"""
)

# ---- DeepSeek 3.1: all system messages at the front
DEEPSEEK_31 = """\
{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<｜User｜>' + message.content }}
    {%- elif message.role == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
    {%- elif message.role == 'assistant' %}
        {%- if loop.previtem is defined and loop.previtem.role == 'user' %}
            {{- '<｜Assistant｜></think>' }}
        {%- endif %}
        {{- message.content }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}
                {{- call.function.arguments + '<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{%- endif %}
{#- tools #}
"""
