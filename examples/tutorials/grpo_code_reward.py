#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GRPO with rewards of programs (docs/tutorials/grpo.md).

The model is tiny and has random weights, so this needs no GPU, no download and no patience; it
learns nothing. Put your model's name in its place. With --ray, the nodes of a Ray cluster, or this
machine's Ray, run the programs.
"""

import contextlib
import os
import sys
import tempfile

from rollbox.integrations.trl import CodeReward, EnvironmentFactory

TASKS = [
    ("Double the number.", ["1", "2"], ["2", "4"]),
    ("Add one to the number.", ["1", "5"], ["2", "6"]),
]
POLICY = {"max_memory": "256M", "max_processes": 32}

def tiny_model():
    """A model of a few thousand weights, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl.chat_template_utils import qwen3_chat_template

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(letters + special)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = qwen3_chat_template
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config), tokenizer


def data_set():
    """Rows with a prompt, and the cases that score an answer."""
    from datasets import Dataset

    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"{text} Answer in a fenced block."}],
                "tests": {"inputs": inputs, "outputs": outputs},
            }
            for text, inputs, outputs in TASKS * 4
        ]
    )


def settings(steps, output, **more):
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=output,
        max_steps=steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        **more,
    )


def code_reward(pool=None):
    """The reward; its programs run here, or on the nodes of a pool, which has the policy."""
    if pool is not None:
        return CodeReward(cases="tests", pool=pool)
    return CodeReward(cases="tests", policy=POLICY)


def train(steps=2, output="grpo", pool=None):
    """The reward is the share of cases that the answer's last program passes."""
    from trl import GRPOTrainer

    model, tokenizer = tiny_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=settings(steps, output),
        train_dataset=data_set(),
        reward_funcs=[code_reward(pool)],
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


def prepare(box, row):
    """Called after each reset, with the row of the data set."""
    box.write_file("/tmp/repo/task", row["prompt"][-1]["content"])
    return "The task is in /tmp/repo/task."


def train_with_tools(steps=1, output="grpo"):
    """The model has a shell; the reward is a command's, judged in a clean sandbox."""
    from trl import GRPOTrainer

    model, tokenizer = tiny_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=settings(steps, output),
        train_dataset=data_set(),
        environment_factory=EnvironmentFactory(
            policy=POLICY,
            setup="mkdir -p /tmp/repo",
            on_reset=prepare,
            reward="test -f /tmp/repo/answer",
            outputs=["/tmp/repo"],
            labels={"experiment": "grpo"},
        ),
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


def ray_pool():
    from rollbox.ray import Pool

    return Pool(POLICY, resource=None)


def main():
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryDirectory())
        pool = stack.enter_context(ray_pool()) if "--ray" in sys.argv else None
        for row in train(2, output, pool) + train_with_tools(1, output):
            print(f"step of {row['step_time']:.1f} s, reward {row['reward']:.2f}")


if __name__ == "__main__":
    main()
