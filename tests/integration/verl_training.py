# SPDX-License-Identifier: Apache-2.0
"""Two steps of verl's own trainer on the CPU: `verl_training.py DIRECTORY`.

The model is a Qwen2 of some thousand random weights. The rollouts are those of RollboxAgentLoop
with RollboxTool, the rewards those of RollboxRewardManager. The last line is JSON.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLACE = Path(sys.argv[1])

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(HERE),
    "SCRIPT_SERVER_WEIGHTS": str(PLACE / "weights.json"),
    "RAY_raylet_start_wait_time_s": "300",  # on a loaded machine
    "TOKENIZERS_PARALLELISM": "false",
    "VERL_ENGINE_DEVICE": "cuda",  # of the FSDP engine, which takes the platform's device
    "VERL_FILE_LOGGER_PATH": str(PLACE / "metrics.jsonl"),
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "WANDB_DISABLED": "true",
}
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # an empty list contradicts the cluster's one "GPU"
sys.path.insert(0, str(HERE))

import pandas  # noqa: E402
import yaml  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

POLICY = {"max_memory": "128M"}
CASES = json.dumps({"inputs": ["1\n", "3\n"], "outputs": ["2", "6"]})
TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
{{ '<|im_end|>\\n' }}{%- endif %}\
{%- for message in messages %}\
{%- if message.role == 'tool' %}\
{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}\
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}\
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_model(path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(letters + special)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.add_special_tokens(special)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)


def make_data(path):
    row = {
        "data_source": "doubling",
        "prompt": [{"role": "user", "content": "Double the number."}],
        "reward_model": {"style": "rule", "ground_truth": CASES},
        "extra_info": {"index": 0},
        "agent_name": "rollbox_agent",
    }
    pandas.DataFrame([row] * 2).to_parquet(path)


def configuration():
    tools = {
        "tools": [
            {
                "class_name": "rollbox.integrations.verl.RollboxTool",
                "config": {"type": "native", "policy": POLICY},
            }
        ]
    }
    loops = [
        {
            "name": "rollbox_agent",
            "_target_": "rollbox.integrations.verl_agent.RollboxAgentLoop",
        }
    ]
    (PLACE / "tools.yaml").write_text(yaml.safe_dump(tools))
    (PLACE / "loops.yaml").write_text(yaml.safe_dump(loops))
    words = f"""
        algorithm.adv_estimator=grpo
        data.train_files={PLACE}/train.parquet data.val_files={PLACE}/train.parquet
        data.train_batch_size=1 data.max_prompt_length=1024 data.max_response_length=512
        data.return_raw_chat=True data.dataloader_num_workers=0 data.shuffle=False
        actor_rollout_ref.model.path={PLACE}/model
        actor_rollout_ref.model.use_remove_padding=False
        +actor_rollout_ref.model.override_config.attn_implementation=eager
        actor_rollout_ref.model.enable_gradient_checkpointing=False
        actor_rollout_ref.actor.strategy=fsdp2
        actor_rollout_ref.actor.ppo_mini_batch_size=1
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
        actor_rollout_ref.actor.use_kl_loss=False
        actor_rollout_ref.actor.optim.lr=0.01
        actor_rollout_ref.actor.use_torch_compile=False
        actor_rollout_ref.actor.fsdp_config.model_dtype=fp32
        actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
        actor_rollout_ref.rollout.name=script actor_rollout_ref.rollout.n=2
        actor_rollout_ref.rollout.tensor_model_parallel_size=1
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2
        actor_rollout_ref.rollout.multi_turn.enable=True
        actor_rollout_ref.rollout.multi_turn.tool_config_path={PLACE}/tools.yaml
        actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4
        actor_rollout_ref.rollout.agent.num_workers=1
        actor_rollout_ref.rollout.agent.agent_loop_config_path={PLACE}/loops.yaml
        reward.num_workers=1
        reward.reward_manager.source=importlib
        reward.reward_manager.name=RollboxRewardManager
        reward.reward_manager.module.path=pkg://rollbox.integrations.verl_agent
        trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.device=cpu
        trainer.logger=[console,file] trainer.val_before_train=False trainer.test_freq=-1
        trainer.save_freq=-1 trainer.total_training_steps=2 trainer.total_epochs=1
        transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        trainer.resume_mode=disable trainer.default_local_dir={PLACE}/checkpoints
        ray_kwargs.ray_init.num_cpus=32 +ray_kwargs.ray_init.num_gpus=1
        +ray_kwargs.ray_init.include_dashboard=False +ray_kwargs.ray_init.address=local
    """
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=words.split())


def main():
    make_model(PLACE / "model")
    make_data(PLACE / "train.parquet")
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    run_ppo(configuration(), TaskRunnerV1)
    rows = [json.loads(line) for line in (PLACE / "metrics.jsonl").read_text().splitlines()]
    weights = json.loads((PLACE / "weights.json").read_text())
    print(json.dumps({"metrics": rows, "weights": weights}))


if __name__ == "__main__":
    main()
