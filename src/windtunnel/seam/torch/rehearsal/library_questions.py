"""Functions of libraries that look at values to choose a way, and what a rehearsal without data answers them.

The answer is what training meets: parameters are valid, nothing is drawn twice, no token is padding. Where a batch may
be padded, the whole batch is computed, the most that the step takes.
"""

from __future__ import annotations

FULL = 1, "completions have full length, of tokens 1"
WITH_PICTURES = ("glm4v", "glm4v_moe", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Models of transformers that give pictures positions in three dimensions."""
VALID = True, "distributions' parameters and values are valid"
ANSWERS: dict[tuple[str, str], tuple[bool | int, str]] = {
    ("bitsandbytes/functional.py", "int8_vectorwise_quant"): (False, "no feature is an outlier"),
    ("torch/nn/init.py", "_no_grad_trunc_normal_"): (False, "no number that is drawn lies out of bounds"),
    ("torch/nn/functional.py", "gaussian_nll_loss"): (False, "no variance is negative"),
    ("torch/nn/modules/transformer.py", "_detect_is_causal_mask"): (True, "the mask is a causal one"),
    ("torch/distributions/constraints.py", "check"): VALID,
    ("torch/distributions/continuous_bernoulli.py", "__init__"): VALID,
    ("torch/distributions/distribution.py", "__init__"): VALID,
    ("torch/distributions/distribution.py", "_validate_sample"): VALID,
    ("torch/distributions/geometric.py", "__init__"): VALID,
    ("torch/distributions/kl.py", "_kl_binomial_binomial"): (False, VALID[1]),
    ("torch/distributions/von_mises.py", "_rejection_sample"): (True, "the first numbers that are drawn are accepted"),
    ("torch/distributions/wishart.py", "__init__"): (False, VALID[1]),
    ("torch/distributions/wishart.py", "_mvdigamma"): VALID,
    ("torch/distributions/wishart.py", "rsample"): (False, "no sample is singular"),
    ("torch/testing/_comparison.py", "_compare_regular_values_close"): (True, "what is compared is close"),
    ("transformers/generation/continuous_batching/distributed.py", "set_tp_seed"): (0, "the seed that is drawn is 0"),
    ("torchao/prototype/moe_training/nvfp4_training/nvfp4_training.py", "_rht_sign_vector_to_tuple"): (
        1,
        "the signs of the Hadamard transform are 1",
    ),
    ("transformers/generation/utils.py", "_beam_search"): (True, "beams go on to the length that was asked for"),
    ("transformers/generation/utils.py", "_get_logits_processor"): (False, "all tokens of the prompt are valid"),
    ("transformers/generation/utils.py", "generate"): (False, "no prompt is padded at its end"),
    ("transformers/loss/loss_for_object_detection.py", "generalized_box_iou"): (True, "boxes' corners are in order"),
    ("transformers/masking_utils.py", "find_packed_sequence_indices"): (True, "no sequences are packed"),
    ("transformers/masking_utils.py", "_ignore_causal_mask_sdpa"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "_ignore_bidirectional_mask_sdpa"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "_can_skip_bidirectional_mask_xpu"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "flash_attention_mask"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "flex_attention_mask"): (True, "no token is padding"),
    ("transformers/models/whisper/generation_whisper.py", "generate_with_fallback"): (False, "no text is padded"),
    ("transformers/models/whisper/generation_whisper.py", "_need_fallback"): (False, "no text is decoded again"),
    ("transformers/models/whisper/generation_whisper.py", "_retrieve_segment"): (1, "no token is a time"),
    ("transformers/modeling_attn_mask_utils.py", "_ignore_causal_mask_sdpa"): (True, "no token is padding"),
    ("transformers/trainer_pt_utils.py", "nested_numpify"): (1, "what is predicted for metrics is 1"),
    ("transformers/modeling_utils.py", "warn_if_padding_and_no_attention_mask"): (False, "no token is padding"),
    **{
        (f"transformers/models/{name}/modeling_{name}.py", "get_rope_index"): (1, "a text's last position is 1")
        for name in WITH_PICTURES
    },
    ("trl/trainer/distillation_trainer.py", "_generate_single_turn"): FULL,
    ("trl/trainer/grpo_trainer.py", "_generate_single_turn"): FULL,
    ("trl/trainer/rloo_trainer.py", "_generate_single_turn"): FULL,
    ("trl/experimental/online_dpo/online_dpo_trainer.py", "training_step"): FULL,
}
"""By file and name of the function: the truth or the integer that it reads, and what that means.

An integer answers truths as well: it is true unless it is 0.
"""
