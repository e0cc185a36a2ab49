"Early exit of a vision encoder–decoder through `generate`."

import torch

from decodelab import LM, EarlyExitDrafter, generate
from tests.refusals import error_message


def vision_model():
    "A vision encoder–decoder of random weights, its decoder a GPT-2 with two layers."
    from transformers import (
        GPT2Config,
        VisionEncoderDecoderConfig,
        VisionEncoderDecoderModel,
        ViTConfig,
    )

    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    vision = ViTConfig(**sizes, image_size=16, patch_size=8)
    text = GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=2, add_cross_attention=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id = config.decoder.bos_token_id = 1
    config.pad_token_id = config.decoder.eos_token_id = 0
    torch.manual_seed(0)
    return VisionEncoderDecoderModel(config).double().eval()


def test_an_early_exit_of_a_vision_encoder_decoder():
    from decodelab.drafters.early_exit import decoder_layers

    model = LM(vision_model(), name='vision')
    path, layers = decoder_layers(model)
    assert path == 'decoder.transformer.h'
    assert len(layers) == 3
    pixels = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    plain = generate(model, pixel_values=pixels, max_new_tokens=6, do_sample=False)
    early = generate(
        model, pixel_values=pixels, max_new_tokens=6, do_sample=False, assistant_early_exit=1
    )
    assert early.tolist() == plain.tolist()
    decoder = model.model.decoder.transformer
    decoder.h = torch.nn.Sequential(*decoder.h)
    assert 'no list of layers' in error_message(lambda: decoder_layers(model))
    assert EarlyExitDrafter(1).layer == 1
