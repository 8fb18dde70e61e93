"""Settings: which source wins, what is refused, and that the error names the source."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from eaglelocal.core.toml_text import read_toml, set_key
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.settings import READERS, SETTINGS, Settings, read_setting, suggest_value, write_setting


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_every_field_has_a_reader_and_an_origin(config: Path) -> None:
    names = {field.name for field in fields(Settings)} - {"set_by"}
    assert set(READERS) == names
    assert dict(Settings().origins()) == dict.fromkeys(names, "default")


def test_without_any_source_all_is_default(config: Path) -> None:
    assert Settings.load({}, {}, config) == Settings()


def test_flag_over_environment_over_file_over_default(config: Path) -> None:
    config.write_text("ctx = 1\nthreads = 1\nseed = 1\n")
    environ = {"EAGLELOCAL_CTX": "2", "EAGLELOCAL_THREADS": "2", "PATH": "/bin"}
    settings = Settings.load({"ctx": 3, "target": None}, environ, config)
    assert (settings.ctx, settings.threads, settings.seed, settings.target) == (3, 2, 1, None)
    origins = settings.origins()
    assert [origins[name] for name in ("ctx", "threads", "seed", "target")] == [
        "--ctx",
        "EAGLELOCAL_THREADS",
        str(config),
        "default",
    ]


@pytest.mark.parametrize(
    ("name", "raw", "message", "hint"),
    [
        ("lora", [""], "--lora must be the path of a file", "leave --lora out"),
        ("cache_disk", "-1", "--cache-disk must be off or a number", "--cache-disk 0"),
    ],
)
def test_a_flag_that_cannot_be(config: Path, name: str, raw: object, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Settings.load({name: raw}, {}, config)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("spec", "auto", "auto"),
        ("spec", "off", "off"),
        ("spec", "4", 4),
        ("spec", 4, 4),
        ("gpu_layers", "auto", None),
        ("gpu_layers", "0", 0),
        ("n_cpu_moe", "auto", None),
        ("n_cpu_moe", "24", 24),
        ("threads", "8", 8),
        ("temperature", "0", 0.0),
        ("temperature", 1, 1.0),
        ("top_p", "0.9", 0.9),
        ("seed", "4294967295", 2**32 - 1),
        ("parallel", 64, 64),
        ("system", "du bist höflich", "du bist höflich"),
        ("kv_type", "q8_0", "q8_0"),
        ("kv_type", "q8_0, q5_1", "q8_0,q5_1"),
        ("kv_type", "q5_1,q5_1", "q5_1"),
        ("override_tensor", r"blk\.\d{1,2}\.ffn=CPU, output=CUDA0", (r"blk\.\d{1,2}\.ffn=CPU", "output=CUDA0")),
        ("override_tensor", r"a{2}b{2,}c{2,3}[^{[]\{=CPU", (r"a{2}b{2,}c{2,3}[^{[]\{=CPU",)),
        ("colour", "never", "never"),
        ("theme", "terminal", "terminal"),
        ("glyphs", "ascii", "ascii"),
        ("alias", "gpt-4o, *", ("gpt-4o", "*")),
        ("keys", "quit=q,ctrl+q pause=p", (("quit", "q,ctrl+q"), ("pause", "p"))),
    ],
)
def test_values_are_read_alike_from_flag_and_environment(config: Path, name: str, raw: object, value: object) -> None:
    by_flag = Settings.load({name: raw}, {}, config)
    by_variable = Settings.load({}, {f"EAGLELOCAL_{name.upper()}": str(raw)}, config)
    assert getattr(by_flag, name) == getattr(by_variable, name) == value


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("spec", "on"),
        ("spec", "-1"),
        ("threads", "0"),
        ("threads", "many"),
        ("threads", "1.5"),
        ("gpu_layers", "-1"),
        ("n_cpu_moe", "all"),
        ("split", "tensors"),
        ("kv_type", "f32"),
        ("kv_type", "q8_0,"),
        ("kv_type", "q8_0,q5_1,q4_0"),
        ("flash_attn", "yes"),
        ("override_tensor", "ffn"),
        ("override_tensor", "=CPU"),
        ("override_tensor", "ffn_(=CPU"),
        ("override_tensor", "(?i)FFN=CPU"),
        ("override_tensor", "ffn=CPU,output"),
        ("override_tensor", "attn_q{,3}=CPU"),  # what std::regex cannot read, or reads otherwise
        ("override_tensor", "attn_q{=CPU"),
        ("override_tensor", "[]a]=CPU"),
        ("override_tensor", "[^]a]=CPU"),
        ("override_tensor", "ffn_[[:alpha:]]=CPU"),
        ("override_tensor", "[a||b]=CPU"),
        pytest.param("override_tensor", f"{'(' * 500}a{')' * 500}=CPU", id="nested"),
        ("ctx", "0"),
        ("parallel", "65"),
        ("temperature", "nan"),
        ("temperature", "-0.1"),
        ("temperature", "warm"),
        ("top_p", "1.1"),
        ("min_p", ""),
        ("max_tokens", "0"),
        ("seed", "-1"),
        ("colour", "red"),
        ("theme", "neon"),
        ("glyphs", "latin"),
        ("keys", "quit"),
        ("keys", "quit="),
    ],
)
def test_wrong_values_name_their_place(config: Path, name: str, raw: str) -> None:
    with pytest.raises(UsageError) as flag:
        Settings.load({name: raw}, {}, config)
    assert flag.value.message.startswith(f"--{name.replace('_', '-')} must be ")
    assert flag.value.message.endswith(f"not {raw!r}"[-150:])  # a long value is shown by its ends
    assert flag.value.exit_code == 2
    with pytest.raises(UsageError) as repeated:  # a flag that can be repeated comes as a list
        Settings.load({name: [raw, raw]}, {}, config)
    assert not repeated.value.message.endswith("']")
    if name == "override_tensor":
        assert repeated.value.hint == r"--override-tensor '\.ffn_.*_exps=CPU'"
    if raw:
        with pytest.raises(UsageError, match=f"^EAGLELOCAL_{name.upper()}: {name} must be "):
            Settings.load({}, {f"EAGLELOCAL_{name.upper()}": raw}, config)


@pytest.mark.parametrize(
    "line",
    [
        "threads = true",
        "threads = 1.0",
        "temperature = false",
        "temperature = [1]",
        "target = 7",
        "split = 1",
        "seed = 1979-05-27",
        "[ctx]\na = 1",
        "keys = ['q']",
        "[keys]\nquit = 1",
    ],
)
def test_wrong_types_in_the_file_name_the_file(config: Path, line: str) -> None:
    config.write_text(line)
    with pytest.raises(UsageError, match="must be") as error:
        Settings.load({}, {}, config)
    assert error.value.message.startswith(f"{config}: ")


@pytest.mark.parametrize(
    ("flags", "environ", "text", "words", "nearest"),
    [
        ({}, {}, "temprature = 1", "unknown setting temprature", "temperature"),
        ({}, {}, "gpu-layers = 1", "unknown setting gpu-layers", "gpu_layers"),
        ({}, {"EAGLELOCAL_GPU_LAYER": "1"}, "", "unknown setting EAGLELOCAL_GPU_LAYER", "EAGLELOCAL_GPU_LAYERS"),
        ({"top_kk": 1}, {}, "", "unknown setting --top-kk", "--top-k"),
    ],
)
def test_unknown_names_get_the_nearest(
    config: Path, flags: dict[str, object], environ: dict[str, str], text: str, words: str, nearest: str
) -> None:
    config.write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        Settings.load(flags, environ, config)
    assert f"did you mean {nearest}?" in error.value.hint


def test_an_unknown_name_is_reported_with_a_way_to_remove_it(config: Path) -> None:
    config.write_text("xyzzy = 1")
    with pytest.raises(UsageError, match="xyzzy") as error:
        Settings.load({}, {}, config)
    assert error.value.hint == "eaglelocal config edit"
    with pytest.raises(UsageError, match="XYZZY") as error:
        Settings.load({}, {"EAGLELOCAL_XYZZY": "1"}, config.with_name("none.toml"))
    assert error.value.hint == "unset EAGLELOCAL_XYZZY"


@pytest.mark.parametrize(
    ("flags", "environ", "hint"),
    [
        ({"port": "x"}, {}, "--port 8421"),
        ({"ctx": "0"}, {}, "leave --ctx out"),
        ({"keys": "quit="}, {}, "leave --keys out"),
        ({}, {"EAGLELOCAL_PORT": "x"}, "unset EAGLELOCAL_PORT"),
    ],
)
def test_a_wrong_value_has_a_way_out(config: Path, flags: dict[str, str], environ: dict[str, str], hint: str) -> None:
    with pytest.raises(UsageError) as error:
        Settings.load(flags, environ, config)
    assert error.value.hint == hint


def test_an_empty_variable_is_not_set(config: Path) -> None:
    assert Settings.load({}, {"EAGLELOCAL_TARGET": ""}, config).target is None


@pytest.mark.parametrize("data", [b"a = ", b"a = 1\na = 2"])
def test_a_file_that_is_no_toml(config: Path, data: bytes) -> None:
    config.write_bytes(data)
    with pytest.raises(UsageError, match=r"config\.toml is not valid TOML"):
        Settings.load({}, {}, config)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Settings.load({}, {}, tmp_path)


def test_settings_are_plain_and_comparable(config: Path) -> None:
    settings = Settings.load({"seed": 1}, {}, config)
    assert settings == Settings.load({"seed": 1}, {}, config)
    assert hash(settings) == hash(Settings.load({"seed": 1}, {}, config))


def test_keys_are_a_table_of_the_file(config: Path) -> None:
    config.write_text("[keys]\npause = 'p'\nquit = 'x,ctrl+x'\n")
    assert Settings.load({}, {}, config).keys == (("pause", "p"), ("quit", "x,ctrl+x"))


def test_a_byte_order_mark_is_no_part_of_the_file(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbftop_k = 7\r\n")
    assert Settings.load({}, {}, config).top_k == 7


# ---- one setting is written
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'theme = "light"\n'),
        ("# a\n[keys]\nquit = 'q'", "theme = \"light\"\n# a\n[keys]\nquit = 'q'"),
        ("theme = 3.5# b\n", 'theme = "light"# b\n'),
        ('theme = ["a", "b"] # b\n', 'theme = "light" # b\n'),
        ('theme = "a \\"#\\" b" # b\n', 'theme = "light" # b\n'),
        ('a = 1\n theme  =  "dark" # b\n', 'a = 1\ntheme = "light" # b\n'),
        ("theme = 'dark'\n[keys]\ntheme = 'x'\n", "theme = \"light\"\n[keys]\ntheme = 'x'\n"),
    ],
)
def test_a_setting_is_written_and_the_rest_stays(before: str, after: str) -> None:
    assert set_key(before, "theme", "light") == after
    without = set_key(after, "theme", None)
    assert read_toml(without) == {name: value for name, value in read_toml(after).items() if name != "theme"}
    assert set(without.splitlines()) <= set(after.splitlines())


@pytest.mark.parametrize("before", ["theme = [\n3]\n", 'theme = """dark"""\n', "[theme]\n", "x = [\n"])
def test_what_cannot_be_replaced_is_left(before: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        set_key(before, "theme", "light")
    file = tmp_path / "config.toml"
    file.write_text(before)
    with pytest.raises(UsageError, match="was not changed"):
        write_setting(file, "theme", "light")
    assert file.read_text() == before


def test_a_written_file_keeps_its_place_and_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "real.toml", tmp_path / "config.toml"
    real.parent.mkdir()
    real.write_text("port = 1\n")
    real.chmod(0o644)
    link.symlink_to(real)
    write_setting(link, "theme", "light")
    assert link.is_symlink() and real.read_text() == 'theme = "light"\nport = 1\n'
    assert real.stat().st_mode & 0o777 == 0o644
    new = tmp_path / "new" / "config.toml"
    write_setting(new, "theme", "dark")
    assert (new.read_text(), new.stat().st_mode & 0o777) == ('theme = "dark"\n', 0o600)
    with pytest.raises(ResourceError, match="cannot write"):
        write_setting(real / "config.toml", "theme", "dark")


def test_a_path_among_the_models_that_leads_nowhere_names_its_place(config: Path) -> None:
    config.write_text('models = ["/nope", "qwen3-8b"]')
    with pytest.raises(UsageError, match=f"{config}: models names /nope"):
        _ = Settings.load({}, {}, config).model_folders
    folder = str(config.parent)
    settings = Settings.load({"models": f"{folder},qwen3-8b"}, {}, config)
    assert settings.model_folders == (folder,)


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("chat.theme", "nord", "eaglelocal config set theme dark"),
        ("theme", "monokay", "eaglelocal config set theme monokai"),
        ("flash_attn", "onn", "eaglelocal config set flash_attn on"),
        ("notify", "yes", "eaglelocal config set notify true"),
        ("temperature", "warm", "eaglelocal config set temperature 0.7"),
        ("ctx", "0", "eaglelocal config unset ctx"),
    ],
)
def test_a_wrong_value_gets_a_command_with_a_valid_one(name: str, given: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_setting(name, given)
    assert caught.value.hint == hint
    *_, known, value = shlex.split(hint)
    if known in SETTINGS:
        SETTINGS[known].read(value)


@pytest.mark.parametrize("name", [name for name, flag in SETTINGS.items() if flag.words])
def test_every_word_of_a_setting_is_a_value(name: str) -> None:
    for word in SETTINGS[name].words:
        SETTINGS[name].read(word)
        assert suggest_value(name, f"{word}x") in SETTINGS[name].words


def test_more_threads_than_llama_cpp_takes_are_refused() -> None:
    assert SETTINGS["threads"].read("512") == 512
    with pytest.raises(ValueError, match="from 1 to 512"):
        SETTINGS["threads"].read("513")
