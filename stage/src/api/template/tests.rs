//! Short forms of the templates that models in use carry.

use super::*;
use serde_json::json;

const LLAMA3: &str = "{%- set loop_messages = messages -%}
{%- for message in loop_messages -%}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' -%}
    {%- if loop.index0 == 0 -%}
        {%- set content = bos_token + content -%}
    {%- endif -%}
    {{- content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
";

const GEMMA: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
";

const QWEN: &str = "{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- \"# Tools\\n<tools>\" }}
    {%- for tool in tools %}
        {{- \"\\n\" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- \"\\n</tools><|im_end|>\\n\" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == \"user\" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == \"user\" or (message.role == \"system\" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == \"assistant\" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{\"name\": \"' }}
                {{- tool_call.name }}
                {{- '\", \"arguments\": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == \"tool\" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != \"tool\") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != \"tool\") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}";

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, "<s>".into(), "</s>".into()).unwrap()
}

fn render(source: &str, messages: Json) -> Result<String, TemplateError> {
    let Json::Array(messages) = messages else {
        panic!("not a list")
    };
    compile(source).render(&Conversation {
        messages,
        ..Conversation::default()
    })
}

#[test]
fn chatml_is_written_turn_by_turn() {
    let text = render(
        CHATML,
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]),
    );
    assert_eq!(
        text.unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn llama_3_writes_its_own_beginning_of_sequence() {
    let text = render(LLAMA3, json!([{"role": "user", "content": " Hi "}]));
    assert_eq!(
        text.unwrap(),
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn gemma_refuses_a_system_message_in_its_own_words() {
    let error = render(GEMMA, json!([{"role": "system", "content": "x"}])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the chat template refuses these messages: System role not supported"
    );
    let text = render(GEMMA, json!([{"role": "user", "content": "Hi"}])).unwrap();
    assert_eq!(text, "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
}

#[test]
fn qwen_shows_tools_calls_and_responses() {
    let tool = json!({"type": "function", "function": {"name": "now", "description": "it's <time>", "parameters": {}}});
    let template = compile(QWEN);
    assert!(template.takes_tools() && template.writes_json_calls() && !template.takes_developer());
    let Json::Array(messages) = json!([
        {"role": "user", "content": "Hora? é"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"zone": "é", "n": [1, 2.0]}}}]},
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
    ]) else {
        unreachable!()
    };
    let text = template
        .render(&Conversation {
            messages,
            tools: Some(vec![tool]),
            variables: Map::from_iter([("enable_thinking".to_string(), json!(false))]),
            ..Conversation::default()
        })
        .unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\n# Tools\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"now\", \
         \"description\": \"it's <time>\", \"parameters\": {}}}\n</tools><|im_end|>\n\
         <|im_start|>user\nHora? é<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"é\", \"n\": [1, 2.0]}}\n\
         </tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn tojson_indents_as_python_does() {
    let template = compile("{{ messages[0] | tojson(indent=2) }}");
    let messages = vec![json!({"a": [1, "ü\n"], "b": {}, "c": [], "d": null, "e": true})];
    let text = template
        .render(&Conversation {
            messages,
            ..Conversation::default()
        })
        .unwrap();
    let lines = [
        "{",
        "  \"a\": [",
        "    1,",
        "    \"ü\\n\"",
        "  ],",
        "  \"b\": {},",
        "  \"c\": [],",
        "  \"d\": null,",
        "  \"e\": true",
        "}",
    ];
    assert_eq!(text, lines.join("\n"));
}

#[test]
fn tojson_takes_pythons_separators_and_order() {
    let template = compile("{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=false) }}");
    let messages = vec![json!({"b": [1, 2], "a": "é"})];
    let conversation = Conversation {
        messages,
        ..Conversation::default()
    };
    assert_eq!(template.render(&conversation).unwrap(), "{\"a\":\"é\",\"b\":[1,2]}");
}

#[test]
fn generation_blocks_print_what_they_hold() {
    let source =
        "{% for message in messages %}{%- generation -%} {{ message.content }} {%- endgeneration -%}{% endfor %}";
    assert_eq!(render(source, json!([{"role": "user", "content": "a"}])).unwrap(), "a");
}

#[test]
fn a_clients_variable_never_replaces_the_templates_own() {
    let variables = Map::from_iter([("messages".to_string(), json!([])), ("word".to_string(), json!("w"))]);
    let messages = vec![json!({"role": "user", "content": "kept"})];
    let text = compile("{{ messages[0].content }} {{ word }}")
        .render(&Conversation {
            messages,
            variables,
            ..Conversation::default()
        })
        .unwrap();
    assert_eq!(text, "kept w");
}

#[test]
fn a_template_that_is_no_jinja_says_where() {
    let error = ChatTemplate::compile("a\n{% if %}", String::new(), String::new()).unwrap_err();
    assert!(error.to_string().contains("(line 2)"), "{error}");
}

#[test]
fn dates_come_from_the_clock() {
    let text = compile("{{ strftime_now('%Y') }}")
        .render(&Conversation::default())
        .unwrap();
    assert!(text.parse::<u32>().unwrap() >= 2024);
}
