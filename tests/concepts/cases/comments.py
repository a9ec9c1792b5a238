"""Comments."""

from concepts.cases import Case

CASES = {
    "comment": Case(
        yes=("«# a»\nx = 1  «# é 'b'»\n", "def f():\n\t«#»\n\tpass\n"),
        no=("x = '# a'\n", "x = 1\n"),
        tricky=(
            '"""\n# a\n"""  «# b # c»\n',
            "f'#{x}'; x = ( «# y»\n  1)\n",
            "«#!/bin/sh»\nif x: pass«#y»\n",
            "print 'x' «# a»\n(",
        ),
    ),
    "inline_comment": Case(
        yes=("x = 1  «# a»\n", "f(  «# b»\n  x)\n"),
        no=("# a\nx = 1\n", "def f():\n    # b\n    pass\n    # c\n"),
        tricky=(
            "'''a\n'''  «# b»\n# c\n",
            "x = (1,\n  # a\n  2)  «# é»\n",
            "s = 'x  # y'; t = f'{s}#'\nif x:\n\ty\n\t\n# a\nz\n  # b\n",
            ")  «# a»\n",
        ),
    ),
    "todo_comment": Case(
        yes=("«# TODO: x»\n", "x = 1  «# see (FIXME)»\n", "«#XXX»\n«# a HACK»\n"),
        no=("# todo\n", "# done\n"),
        tricky=("x = '# TODO'\n# TODO_LIST TODOS XXXX\n", "'''\n# TODO\n'''\nTODO = HACK\n", "f(«# éa TODO?»\n)\n"),
    ),
    "tool_pragma": Case(
        yes=("x = 1  «# noqa: E501»\n", "«# type: ignore[a]»\n", "y  «#pragma: no cover»\n", "«# pylint: disable=x»\n"),
        no=("# type: int\n", "# a comment\n"),
        tricky=(
            "x = '# noqa'  # see noqa and fmt: x\n",
            "x  «# type: int  # NoQA»\n",
            "# noqas nosecurity Fmt: x\n'''\n# fmt: off\n'''\n",
            "f(«# é # ruff: noqa»\n)\n",
        ),
    ),
    "license_comment": Case(
        yes=("«# Copyright 2020 é»\n«# ALL rights Reserved.»\n", "x  «# licensed to»\n", "«# MIT Licence»\n"),
        no=("# a comment\n", "# all rights\n"),
        tricky=("x = '# Copyright'\nlicense = 1\n", "'''\n# license\n'''  # lice nse\n", "f(«#sublicense»\n)\n"),
    ),
    "url_comment": Case(
        yes=("«# http://a»\n", "x  «# see <https://é>»\n"),
        no=("# ftp://a\n", "# http:\n"),
        tricky=("x = 'http://a#b'  # c\n", "'''\n# http://a\n'''\n", "# HTTP://\nf(«#https://»\n)\n"),
    ),
    "separator_comment": Case(
        yes=("«# ----»\n", "«#####»\n", "def f():\n    «#==========#»\n    pass\n"),
        no=("# ---\n", "# -- a --\n", "####\n", "#\n"),
        tricky=(
            "x = '# ----'\n'''\n# ----\n'''\n",
            "# xxxx\n# 1111\n# -=-=\n# - - - -\n«## ──── ##»\n# # # # # #\n",
            "x  «#\t....»\n##### a\n",
        ),
    ),
    "commented_out_code": Case(
        yes=("«# x = 1»\n", "«#print(é)»\n", "«# if x:»\n«#     return y»\n«# else:»\n", "y  «# import a, b»\n"),
        no=("# return the value\n", "# see f(x) for more\n", "# x\n"),
        tricky=(
            "s = '# x = 1'\n'''\n# f()\n'''\n",
            "# Note: this\n# x == y\n# type: ignore\n# (a)\n# 'f()'\n# for example:\n# a = \n# x: int\n",
            "# x: int = 1\n# pylint: disable=a\n",
            "«# a.b += c; f()»\n# f(); g\n«## except OSError as e:»\n«# elif (n := 1):»\n",
            "«# try:»\n«# finally:»\n«# async def f(a):»\n«# class A(B):»\n# @a\n",
            "«# f('\\d')»\n«# pass»\n# lambda x: y\n# await f()\n# <f(x)>\n# print 'a'\n«# f(x)  # so:»\n",
        ),
    ),
    "encoding_comment": Case(
        yes=(
            "«# -*- coding: utf-8 -*-»\n",
            "#!/usr/bin/python\n«# vim: set fileencoding=latin-1 :»\n",
            "\n«#coding:utf8»\n",
        ),
        no=("x = 1  # coding: utf-8\n", "\n\n# coding: utf-8\n", "# coding : x\n"),
        tricky=(
            "x = 1\n# coding: utf-8\n",
            "«# coding: a»\n# coding: b\n",
            "'# coding: utf-8'\n",
            "'''\n# coding: utf-8'''\n",
            "# coding:\n\f«#encoding=x»\n",
        ),
    ),
}
