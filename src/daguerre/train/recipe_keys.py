"""What each key of a recipe means: the source of docs/recipes.md. A test holds the keys to the classes of recipes."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_type_hints

from daguerre.train.concept_loss import ConceptTraining
from daguerre.train.convert import Convert
from daguerre.train.distill.options import Distill
from daguerre.train.lora import Lora
from daguerre.train.prefer.options import Prefer
from daguerre.train.recipe import Optimization, Recipe, Share, TrainedShape
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.sft.presets import Sft
from daguerre.train.stage import Stage

SECTIONS: tuple[tuple[str, str, type], ...] = (
    ("", "The run", Recipe),
    ("optim.", "[optim]: the optimizer", Optimization),
    ("stages.N.", "[[stages]]: lengths and batches", Stage),
    ("mixture.NAME.", "[mixture.NAME]: objectives and their shares", Share),
    ("convert.", "[convert]: an autoregressive model becomes another", Convert),
    ("sft.", "[sft]: fine-tuning on prompts and answers", Sft),
    ("prefer.", "[prefer]: learning from preferences", Prefer),
    ("distill.", "[distill]: fewer steps", Distill),
    ("reinforce.", "[reinforce]: answers that the model draws are rewarded", Reinforce),
    ("model.", "[model]: the shape of a model that is trained from scratch", TrainedShape),
    ("concepts.", "[concepts]: concept heads", ConceptTraining),
    ("lora.", "[lora]: an adapter", Lora),
)
"""The prefix of the keys, the heading, and the class of each section."""

OPTIONS = {"minutes": "--max-minutes"}
"""Options of `daguerre train` that set a key; `--set KEY=VALUE` sets any."""

MEANINGS: dict[str, str] = {
    "name": "name of the run, and of its folder, runs/NAME",
    "tokenizer": "2k, 8k or bytes, which come with the package; own, made from the files that are trained on; or the "
    "path of a tokenizer.json",
    "model": "the table [model]; left out in recipes that start from a model, with `--from`",
    "mixture": "the tables [mixture.NAME]",
    "sft": "the table [sft], in place of a mixture: the data is prompts and answers",
    "prefer": "the table [prefer], in place of a mixture: the data is prompts with a chosen and a rejected answer",
    "reinforce": "the table [reinforce], in place of a mixture: the data is prompts, whose answers are rewarded",
    "convert": "the table [convert]: an autoregressive model becomes one of block or full context",
    "distill": "the table [distill], beside [sft]: the model learns to decode answers in fewer steps",
    "stages": "the tables [[stages]]",
    "optim": "the table [optim]",
    "concepts": "the table [concepts]: concept heads are trained with the model",
    "lora": "the table [lora]: an adapter is trained, and the model that the run starts from stays as it is",
    "train": "names of the weights that are trained: layers.4, mlp, layers.*.attention, norms, embedding, head; none: "
    "all",
    "checkpoint_layers": "the inner results of layers are computed again in the backward pass: less memory, more time",
    "tensor_parallel": "of the processes that torchrun starts, how many share the matrices of each layer",
    "seed": "of every random number",
    "steps": "budget in optimizer steps; 0: no such limit",
    "minutes": "budget in minutes, loading, measuring and saving included; 0: no such limit",
    "rope_scaling": 'more positions for the model to start from, KIND:FACTOR, such as yarn:4; "": as many as it has',
    "anneal": "share of the run over which a causal model's attention opens to full context; 0: at once",
    "draft_head": "inner width of a draft head, which is all that is trained then; 0: none",
    "draft_rank": "rank of weights that act on masked rows of drafts alone; needs draft_head",
    "files": "what is read of a folder: python, or text, which is files of any language",
    "precision": "auto, bf16 or float32; auto takes bf16 where the processor multiplies it natively",
    "attn_impl": "how attention is computed: matmul, or sdpa for long windows",
    "compile": "compile the layers with torch.compile",
    "loaders": "processes that prepare batches; 0: the training process does it",
    "log_steps": "steps between two printed lines, without a terminal",
    "eval_steps": "steps between two held-out measurements; 0: at the end alone",
    "checkpoint_minutes": "minutes between two checkpoints",
    "checkpoint_steps": "steps between two checkpoints, besides; 0: none",
    "optim.muon_lr": "learning rate of Muon, for hidden matrices",
    "optim.muon_momentum": "momentum of Muon",
    "optim.adamw_lr": "learning rate of AdamW, for all other weights",
    "optim.concepts_lr": "learning rate of AdamW for concept heads",
    "optim.weight_decay": "decay of weights, as a share of the learning rate",
    "optim.clip": "greatest norm of a step's gradients",
    "optim.warmup": "share of the run in which rates rise from 0",
    "optim.decay": "last share of the run, in which rates fall to 0",
    "optim.ema": "decay of the average of the weights at each step; the average is what is saved",
    "optim.passes": "passes over the text after which rates also fall with the square of their number; 0: never",
    "stages.N.until": "share of the run at which the stage ends; 1.0 for the last one",
    "stages.N.length": "tokens of a window",
    "stages.N.sequences": "windows of a micro-batch",
    "stages.N.micro_batches": "micro-batches of a step",
    "stages.N.block_size": "tokens of the blocks of answers that are noised together; 0: the model's; [sft]",
    "stages.N.corruption": "wrong tokens to correct in answers: none, random, self, hybrid or edit; [sft]",
    "convert.to": "diffullama, sdar or fast_dllm",
    "convert.block_size": "tokens of a block; 0: those of that recipe",
    "sft.preset": "the loss: auto, daguerre, ar, llada, dream, dream_cart, nemotron, llada2, sdar or fast_dllm",
    "sft.times": "how noise levels are drawn, in place of the preset's",
    "sft.weight": "weight by noise level, in place of the preset's: one, elbo, clipped or cart",
    "sft.normalizer": "what the loss is divided by: answer, supervised, masked or window",
    "sft.levels": "a noise level is drawn for each text or each block",
    "sft.complementary": "each text is there twice, with masks that complement each other",
    "sft.clean": "weight of the next-token loss of answers, where the model has one",
    "sft.padding": "what follows an answer: supervised, unsupervised or rainbow",
    "sft.packing": "several texts share a sequence and do not see each other; by default where nothing follows answers",
    "sft.cart": "p of the weight cart",
    "sft.errors": "share of tokens that a stage's corruption changes; of edits the largest",
    "sft.rainbow": "tokens that follow an end of text in turn, with the padding rainbow",
    "sft.held_out": "share of the rows that is held out",
    "sft.keep": "weight of the divergence from the model as it began, on rows of plain text; 0: they are learned",
    "sft.keep_of": "a model whose law is kept in place of the start's: that from which the start was trained",
    "prefer.beta": "what margins of log-probability are multiplied by: the lower, the further from the start",
    "prefer.smoothing": "share of the pairs that are taken to be the wrong way round",
    "prefer.sft": "weight of the mean next-token or masked loss of the chosen answer",
    "prefer.keep": "weight of the divergence from the model as it began, on next tokens of prompts",
    "prefer.times": "masks that estimate an answer's log-probability, where it is not exact",
    "prefer.antithetic": "each mask's complement besides, and everything masked",
    "prefer.ends": "an end of text follows answers that are plain texts; false: they are cut off",
    "prefer.held_out": "share of the rows that is held out",
    "sft.tasks": "what the rows teach, of `daguerre.instructions.TASKS`; the model keeps it, and the server answers it",
    "distill.method": "sdtt, trajectories or on_policy",
    "distill.policy": "what decodes: threshold, margin, confidence, entropy or random",
    "distill.threshold": "probability from which the policy threshold commits a token",
    "distill.steps": "forwards of an answer by the other policies; in on_policy the most",
    "distill.temperature": "of the tokens that the teacher commits; 0: the most likely",
    "distill.rounds": "how often the averaged student becomes the teacher, the first teacher included",
    "distill.skip": "steps of the teacher that the student learns to do in one, in sdtt",
    "distill.noise": "share of a trajectory's steps that are still to come, at most: first and last of the curriculum",
    "distill.window": "steps of a trajectory that are learned from one state: first and last of the curriculum",
    "distill.curriculum": "share of the run over which noise and window grow",
    "distill.states": "states of each trajectory that are learned",
    "distill.certainty": "weight of the entropy of tokens that are right, in trajectories",
    "distill.only_right": "trajectories other than the data's answers are left out",
    "distill.rollouts": "of each answer, in on_policy",
    "distill.sharpness": "k: rollouts commit a token with probability p^k",
    "distill.kl": "weight of the KL to the teacher, in on_policy",
    "distill.goal": "whose answer is right in on_policy: data or teacher",
    "distill.clean": "weight of the KL to the teacher of next tokens, where clean rows predict them",
    "reinforce.estimate": "of an answer's log-probability: left_to_right, coupled, spg or traced",
    "reinforce.group": "answers to a prompt; a step has sequences times micro_batches answers in all",
    "reinforce.updates": "steps on the same answers, with masks of their own",
    "reinforce.clip": "how far a token's ratio of probabilities, new to old, counts above and below 1",
    "reinforce.kl": "weight of the distance from the model that the run began with; 0: none",
    "reinforce.scaled": "advantages are divided by the standard deviation of their group",
    "reinforce.pairs": "pairs of complementary masks in which an answer is estimated; coupled and spg",
    "reinforce.power": "of the upper bound that answers below their group's mean have; spg",
    "reinforce.together": "steps of decoding in one view; traced",
    "reinforce.length": "the most tokens of an answer, or of a gap of a template",
    "reinforce.mode": "of decoding; empty: ar in causal context; block in block context; in full context a token at a "
    "time from left to right for left_to_right, else full",
    "reinforce.policy": "of decoding: which tokens are committed first; empty: that of the mode",
    "reinforce.steps": "the most forwards of an answer, with policies that have steps; 0: one for each token",
    "reinforce.block_size": "of decoding, in mode block; 0: the mode's",
    "reinforce.threshold": "of decoding, with policies that have one; 0: theirs",
    "reinforce.temperature": "at which answers are drawn",
    "reinforce.reward": "the function (prompt, answer) that rewards: module:function or file.py:function",
    "reinforce.command": "a command that rewards instead, in a sandbox",
    "reinforce.seconds": "that a command may take",
    "reinforce.megabytes": "of memory that a command may take",
    "reinforce.held_out": "share of the prompts that is held out",
    "mixture.NAME.share": "share of the sequences",
    "mixture.NAME.layout": "what is noisy, and what it sees: drafts, blocks, canvas, infill, suffix, "
    "next_token, full, groups and others (`daguerre.train.objectives.CONTEXT_OF`)",
    "mixture.NAME.times": "how the noise level is drawn: uniform, full (all masked), half_full and others",
    "mixture.NAME.schedule": "share of masks at each time (docs/noise.md)",
    "mixture.NAME.weight": "weight of the masked loss by noise level: one, elbo, or clipped (elbo, at most 5)",
    "mixture.NAME.normalizer": "the loss is divided by the number of tokens, or by the weights of what is masked",
    "mixture.NAME.clean": "weight of next-token loss on clean rows",
    "mixture.NAME.masked": "weight of the masked loss, besides `weight`",
    "mixture.NAME.copies": "noisy versions of each gap, at different levels; layout infill",
    "mixture.NAME.left": "share of spans whose visible tokens are the leftmost ones, as decoding has them",
    "mixture.NAME.next": "weight of the first masked token of such spans",
    "mixture.NAME.teacher": "data, or self: spans go on with the model's own greedy text",
    "mixture.NAME.errors": "share of visible tokens that are replaced by wrong ones, to be corrected",
    "mixture.NAME.certainty": "weight of the entropy of masked rows that are right already",
    "mixture.NAME.group": "masked rows of a group, and so tokens of a draft; layout groups",
    "model.width": "numbers of a hidden state",
    "model.num_layers": "layers",
    "model.num_heads": "heads of attention",
    "model.num_kv_heads": "heads of keys and values, a divisor of num_heads",
    "model.mlp_width": "inner width of the MLP",
    "model.max_positions": "tokens of the longest text",
    "model.context": "what clean rows see: causal, block or full",
    "model.shift": "the row of a token predicts the next one; else a row predicts its own token",
    "model.block_size": "tokens of a block, with block context",
    "model.anchor": "noisy or clean: the row before a block, which predicts its first token",
    "model.process": "the noise: absorbing (masks), uniform (other tokens) or hybrid",
    "model.time_input": "the noise level is an input",
    "model.head_width": "numbers of a head; 0: width / num_heads",
    "model.qk_norm": "queries and keys are normalized",
    "model.qkv_bias": "biases of queries, keys and values",
    "model.out_bias": "bias of the output of attention",
    "model.mlp_bias": "biases of the MLP",
    "model.tied": "the vocabulary projection is the embedding",
    "model.output_bias": "bias of an untied vocabulary projection",
    "model.norm": "rms or layer",
    "model.norm_bias": "LayerNorm has a bias",
    "model.norm_placement": "pre: before each branch; post: behind it; both",
    "model.norm_eps": "what is added to the mean square",
    "model.activation": "silu, gelu or gelu_tanh",
    "model.gated_mlp": "the MLP has a gate",
    "model.positions": "rotary or learned",
    "model.rope_theta": "base of rotary positions",
    "model.rope_share": "share of each head that is rotated",
    "model.rope_scaling": "rotary positions scaled for long texts",
    "model.qk_norm_scope": "head: each head is normalized alone; all: all together",
    "model.clip_qkv": "greatest size of queries, keys and values",
    "model.embedding_scale": "what embeddings are multiplied by",
    "model.attention_scale": "what scores of attention are multiplied by; null: 1 / sqrt(head_width)",
    "model.windows": "layers whose rows see no further than a window",
    "model.experts": "a mixture of experts; cannot be trained from scratch",
    "model.adaptive_width": "width of the vector of the noise level for adaptive norms; 0: plain norms",
    "model.gemma": "the core of DiffusionGemma; for loading alone",
    "lora.rank": "rank of the factors",
    "lora.alpha": "products are multiplied by alpha / rank",
    "lora.targets": "names of the modules that get factors, as published (q_proj) or ours (qkv), or the end of a "
    "longer name; all-linear: every matrix of the layers",
    "lora.dropout": "share of a matrix's inputs that its factors do without",
    "lora.rslora": "products are multiplied by alpha / sqrt(rank) instead",
    "lora.whole": "names of modules that are trained and stored whole, beside the factors (PEFT: modules_to_save)",
    "concepts.labeled": "tokens of the corpus that are labeled, in whole documents",
    "concepts.discovered": "discovered concepts for each known one",
    "concepts.rank": "rank of the discovered concepts' weights",
    "concepts.kept_known": "known concepts that a row keeps",
    "concepts.kept_discovered": "discovered concepts that a row keeps",
    "concepts.frozen": "share of the run in which only the heads learn",
    "concepts.sparse": "share of the run from which on only the heaviest concepts of a row count",
    "concepts.unforced": "share of the run until which labels take the place of weights",
    "concepts.residual_drop": "share of the sequences whose language loss does without the residual",
    "concepts.presence": "weight of the loss of each known concept",
    "concepts.any": "weight of the loss of concepts over a span",
    "concepts.reconstruction": "weight of the loss of what known and discovered concepts leave of the hidden state",
    "concepts.independence": "weight of the loss that keeps known and discovered parts apart",
    "concepts.residual": "weight of the loss of the residual's size",
    "concepts.alignment": "weight of the loss that aligns concepts with the tokens that they raise",
    "concepts.respond": "weight of the loss of what the model says of an injected concept",
    "concepts.express": "weight of the loss of how an injected concept shows in the text",
    "concepts.inject": "share of the run from which on concepts are injected",
    "concepts.strength": "how far an injected concept raises the logit of its top token",
    "concepts.detached": "the language loss does not train the discovered head",
}


def keys() -> dict[str, tuple[str, str]]:
    """Every key of a recipe, with its type and default in words."""
    out: dict[str, tuple[str, str]] = {}
    for prefix, _, kind in SECTIONS:
        hints = get_type_hints(kind)
        for each in fields(kind):
            out[prefix + each.name] = _type(hints[each.name]), _default(each)
    return out


def _type(hint: Any) -> str:
    if hint in (int, float, str, bool):
        return {int: "whole number", float: "number", str: "text", bool: "true or false"}[hint]
    values = get_args(hint)
    if values == (str,):
        return "list of texts"
    if values and all(isinstance(value, str) for value in values):
        return "text"
    inner = next((_type(value) for value in values if value in (int, float, str, bool)), "table")
    return "tables" if getattr(hint, "__origin__", None) is not None and inner != "whole number" else inner


def _default(each: Field[Any]) -> str:
    if each.default is MISSING:
        return "needed" if each.default_factory is MISSING else "its defaults"
    if isinstance(each.default, tuple):
        return ", ".join(map(str, each.default)) or "none"
    return (
        "none"
        if each.default is None
        else str(each.default).lower()
        if isinstance(each.default, bool)
        else str(each.default)
    )


def page() -> str:
    """The tables of docs/recipes.md."""
    known, parts = keys(), list[str]()
    for prefix, heading, _ in SECTIONS:
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, (kind, default) in known.items():
            if (name.startswith(prefix) and prefix) or (not prefix and "." not in name):
                option = f" (`{OPTIONS[name]}`)" if name in OPTIONS else ""
                rows.append(f"| `{name}` | {kind} | {default} | {MEANINGS[name]}{option} |")
        parts.append(f"## {heading}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)
