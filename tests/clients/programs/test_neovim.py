"""Neovim with llama.vim, and with minuet: a function's body is suggested, taken and written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nvim import editing, filled
from tasks import AFTER, BEFORE, COMPLETED, holds
from wire import Wire

LLAMA = """
set noswapfile
set runtimepath^={plugin}
let g:llama_config = {{'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions',
    \\ 'model_inst': 'coder', 't_max_predict_ms': 10000}}
filetype plugin on
"""
MINUET = """
vim.opt.swapfile = false
vim.opt.runtimepath:prepend('{plenary}')
vim.opt.runtimepath:prepend('{plugin}')
require('minuet').setup {{
  provider = 'openai_fim_compatible',
  n_completions = 1,
  context_window = 2000,
  request_timeout = 60,
  provider_options = {{
    openai_fim_compatible = {{
      name = 'Daguerre', api_key = 'TERM', end_point = '{url}/v1/completions', model = 'coder',
      optional = {{ max_tokens = 56 }},
    }},
  }},
  virtualtext = {{ keymap = {{ accept = '<A-a>', next = '<A-n>' }} }},
}}
"""
LINE = BEFORE.count("\n") + 1
Program = Callable[[str], Path]


def test_llama_vim_completes_a_function(program: Program, wire: Wire, home: Path) -> None:
    file = home / "work" / "statistics_of.py"
    file.write_text(BEFORE + AFTER)
    settings = LLAMA.format(plugin=program("plugins/llama.vim"), url=wire.url)
    with editing(program("neovim/bin/nvim"), home, settings, file) as editor:
        text = filled(editor, file, LINE, "llama#is_fim_hint_shown()", "<Tab>")
    assert text.startswith(BEFORE.rstrip()) and text.endswith(AFTER)
    assert holds(text, COMPLETED), text
    assert wire.asked("/infill")


def test_minuet_completes_a_function(program: Program, wire: Wire, home: Path) -> None:
    file = home / "work" / "statistics_of.py"
    file.write_text(BEFORE + AFTER)
    plugins = {"plenary": program("plugins/plenary.nvim"), "plugin": program("plugins/minuet-ai.nvim")}
    settings = MINUET.format(**plugins, url=wire.url)
    shown = "luaeval(\"require('minuet.virtualtext').action.is_visible()\")"
    with editing(program("neovim/bin/nvim"), home, settings, file, "init.lua") as editor:
        text = filled(editor, file, LINE, shown, "<A-a>", ask="<A-n>")
    assert text.startswith(BEFORE.rstrip()) and text.endswith(AFTER)
    assert holds(text, COMPLETED), text
    assert wire.asked("/v1/completions")[0].asked["suffix"]
