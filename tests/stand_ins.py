"""Tiny models with random weights under the names that experiments load at scale `paper`, laid out as the Hub's cache, and files for their data sets.

They say nothing about the models they stand for. They show that names, architectures, tokenizers and files go through the same cells as the real ones."""

import csv
import functools
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

SPECIAL = dict(
    opt=('</s>', '</s>', '<pad>'),
    gpt2=('<|endoftext|>',) * 3,
    neox=('<|endoftext|>', '<|endoftext|>', '<|padding|>'),
    llama=('<s>', '</s>', '<unk>'),
    llama3=('<|begin_of_text|>', '<|end_of_text|>', '<|pad|>'),
    t5=(None, '</s>', '<pad>'),
    bart=('<s>', '</s>', '<pad>'),
    gemma=('<bos>', '<eos>', '<pad>'),
    mistral=('<s>', '</s>', '<unk>'),
    phi=('<s>', '<|endoftext|>', '<|endoftext|>'),
    qwen=('<|endoftext|>', '<|endoftext|>', '<|endoftext|>'),
    starcoder=('<|endoftext|>',) * 3,
)  # bos, eos, pad
TEMPLATES = dict(
    opt='{bos} $A',
    llama='{bos} $A',
    llama3='{bos} $A',
    mistral='{bos} $A',
    gemma='{bos} $A',
    t5='$A {eos}',
    bart='{bos} $A {eos}',
)  # what a tokenizer adds to a text
ARCHITECTURES = {
    r'/opt-': ('opt', 'opt'),
    r'pythia|gpt-neox': ('gpt_neox', 'neox'),
    r'codegen': ('codegen', 'gpt2'),
    r'flan-t5|/t5-|^t5-|^flan': ('t5', 't5'),
    r'bart': ('bart', 'bart'),
    r'pegasus': ('pegasus', 't5'),
    r'SmolLM': ('llama', 'gpt2'),
    r'whisper': ('whisper', ''),
    r'starcoder': ('gpt_bigcode', 'starcoder'),
    r'gpt2': ('gpt2', 'gpt2'),
    r'gemma': ('gemma2', 'gemma'),
    r'[Mm]ixtral': ('mixtral', 'mistral'),
    r'[Mm]istral': ('mistral', 'mistral'),
    r'[Pp]hi-': ('phi3', 'phi'),
    r'[Qq]wen': ('qwen2', 'qwen'),
    r'[Ll]lama-?3|llama3': ('llama', 'llama3'),
    r'[Ll]lama|vicuna': ('llama', 'llama'),
}  # name → (model_type, tokenizer)
SIZES = dict(
    opt=410,
    gpt2=420,
    neox=430,
    llama=440,
    llama3=450,
    t5=460,
    bart=470,
    gemma=480,
    mistral=490,
    phi=400,
    qwen=500,
    starcoder=510,
)  # tokens: no two families have one vocabulary
WORDS = (
    'the a one some people house river train morning city doctor paper market light winter road school letter window number garden report music night question answer street company minister child '
    'said found made went saw asked told built left kept heard wrote opened moved lost won old small new red quiet long early and but because while under near after before with of in on to for'
).split()


def architecture_of(name):
    "`(model_type, tokenizer)` of a model's name; raises `ValueError` if this file knows none."
    for pattern, result in ARCHITECTURES.items():
        if re.search(pattern, name):
            return result
    raise ValueError(f'{name} has no stand-in: add its family to tests/stand_ins.py')


def random_prose(seed, sentences):
    "Sentences of plain words, the same for a seed; some are said twice."
    rng, out = random.Random(seed), []
    for _ in range(sentences):
        out.append(
            rng.choice(out)
            if out and rng.random() < 0.2
            else ' '.join(rng.choice(WORDS) for _ in range(rng.randint(6, 14))).capitalize() + '.'
        )
    return ' '.join(out)


def random_code(seed, functions):
    "Python functions, the same for a seed."
    rng = random.Random(seed)

    def one():
        return f'def {rng.choice(WORDS)}_{rng.choice(WORDS)}(items, limit={rng.randint(1, 99)}):\n    """{random_prose(rng.random(), 1)}"""\n    out = []\n    for item in items:\n        if item > limit: out.append(item)\n    return out\n'

    return '\n\n'.join(one() for _ in range(functions))


@functools.cache
def tokenizer(kind):
    "A tokenizer of one family, trained here: byte-level, or by words behind `▁` with bytes to fall back on."
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    bos, eos, pad = SPECIAL[kind]
    special = list(dict.fromkeys(t for t in (pad, bos, eos, '<unk>') if t))
    words = kind in ('llama', 'mistral', 'gemma', 'phi', 't5')
    bytes_ = [f'<0x{i:02X}>' for i in range(256)] if words else []
    tok = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=words, fuse_unk=words))
    tok.pre_tokenizer = (
        pre_tokenizers.Metaspace() if words else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    tok.decoder = (
        decoders.Sequence(
            [
                decoders.Replace('▁', ' '),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(' ', 1, 0),
            ]
        )
        if words
        else decoders.ByteLevel()
    )
    alphabet = [] if words else sorted(pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(
        [random_prose(kind, 80), random_code(kind, 20)],
        trainers.BpeTrainer(
            vocab_size=SIZES[kind],
            special_tokens=special + bytes_,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    plain = json.loads(tok.to_str())
    plain['added_tokens'] = [
        t for t in plain['added_tokens'] if t['content'] not in bytes_
    ]  # bytes are ordinary tokens
    tok = Tokenizer.from_str(json.dumps(plain))
    tok.add_special_tokens([AddedToken(t, special=True) for t in special])
    if kind in TEMPLATES:
        pattern = TEMPLATES[kind].format(bos=bos, eos=eos)
        tok.post_processor = processors.TemplateProcessing(
            single=pattern,
            special_tokens=[(t, tok.token_to_id(t)) for t in (bos, eos) if t and t in pattern],
        )
    return tok


DEPTHS = {r'SmolLM-1\.7B': 24, r'huggyllama/llama-7b': 32}  # where a source names layers by number


def depth_of(name):
    "Layers of the stand-in for a name, unless it drafts."
    return next((n for pattern, n in DEPTHS.items() if re.search(pattern, name)), 8)


def configuration(model_type, kind, draft, depth=8):
    "The configuration of a tiny model of a type."
    from transformers import CONFIG_MAPPING

    tok, (bos, eos, pad) = tokenizer(kind), SPECIAL[kind]
    wide, deep = 48, 2 if draft else depth
    shape = dict(
        vocab_size=tok.get_vocab_size(),
        bos_token_id=bos and tok.token_to_id(bos),
        eos_token_id=tok.token_to_id(eos),
        pad_token_id=tok.token_to_id(pad),
    )
    rope = dict(
        hidden_size=wide,
        num_hidden_layers=deep,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    both_sides = dict(
        d_model=wide,
        encoder_layers=2,
        decoder_layers=deep,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        init_std=0.2,
    )
    more = dict(
        llama=rope | dict(num_key_value_heads=2),
        mistral=rope | dict(num_key_value_heads=2, sliding_window=None),
        qwen2=rope | dict(num_key_value_heads=2),
        phi3=rope | dict(num_key_value_heads=2),
        mixtral=rope | dict(num_key_value_heads=2, num_local_experts=2),
        gemma2=rope | dict(num_key_value_heads=2, head_dim=16),
        gpt_neox=rope,
        opt=dict(
            hidden_size=wide,
            word_embed_proj_dim=wide,
            num_hidden_layers=deep,
            num_attention_heads=4,
            ffn_dim=64,
            max_position_embeddings=4096,
            init_std=0.2,
        ),
        gpt2=dict(n_embd=wide, n_layer=deep, n_head=4, n_positions=1024, initializer_range=0.2),
        gpt_bigcode=dict(
            n_embd=wide, n_layer=deep, n_head=4, n_positions=4096, initializer_range=0.2
        ),
        codegen=dict(
            n_embd=wide,
            n_layer=deep,
            n_head=4,
            rotary_dim=8,
            n_positions=2048,
            n_ctx=2048,
            initializer_range=0.2,
            tie_word_embeddings=False,
        ),
        t5=dict(
            d_model=wide,
            d_kv=8,
            d_ff=64,
            num_layers=deep,
            num_heads=4,
            decoder_start_token_id=shape['pad_token_id'],
            initializer_factor=1.0,
        ),
        pegasus=both_sides | dict(decoder_start_token_id=shape['pad_token_id']),
        bart=both_sides
        | dict(decoder_start_token_id=shape['eos_token_id'], forced_eos_token_id=None),
    )
    return CONFIG_MAPPING[model_type](**shape | more[model_type])


DRAFT_NAMES = re.compile(
    r'125m|135M|160m|350[Mm]|(?<!llama3\.2)[-_](?:0\.5|1|1\.1)[Bb]\b|68m|small|tiny|distil|270|450|draft|/gpt2$'
)  # names that draft


def weights(model_type, kind, draft, depth=8):
    """A model of a type.

    Layers beyond the second say little, and a draft is the first two, so that it is right now and
    then.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = configuration(model_type, kind, draft, depth)
    with torch.random.fork_rng():
        torch.manual_seed(len(kind))
        made = (
            AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        ).from_config(config, dtype=torch.float32)
    if draft:
        made.load_state_dict(
            {
                k: v
                for k, v in weights(model_type, kind, False).state_dict().items()
                if k in made.state_dict()
            },
            strict=False,
        )
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.ndim > 1 and (layer := re.search(r'\.(\d+)\.', name)) and int(layer[1]) > 1:
                p.mul_(0.6)
    return made


HEADS = {  # published draft heads: their layout, and the target of which they are
    'FasterDecoding/medusa-vicuna-7b-v1.3': ('medusa', 'lmsys/vicuna-7b-v1.3'),
    'yuhuili/EAGLE-Vicuna-7B-v1.3': ('eagle', 'lmsys/vicuna-7b-v1.3'),
    'yuhuili/EAGLE3-Vicuna1.3-13B': ('eagle3', 'lmsys/vicuna-13b-v1.3'),
    'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B': ('eagle3', 'meta-llama/Llama-3.1-8B-Instruct'),
    'ankner/hydra-vicuna-7b-v1.3': ('hydra', 'lmsys/vicuna-7b-v1.3'),
    'RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3': (
        'speculators',
        'meta-llama/Llama-3.1-8B-Instruct',
    ),
}


def llama_shapes(prefix, config, reads):
    "Shapes of a Llama layer's tensors, whose attention reads vectors of `reads` numbers."
    d = config.hidden_size // config.num_attention_heads
    wide, inner = config.hidden_size, config.intermediate_size
    rows = dict(q=wide, k=d * config.num_key_value_heads, v=d * config.num_key_value_heads)
    shapes = {f'{prefix}.self_attn.{n}_proj.weight': (r, reads) for n, r in rows.items()}
    shapes[f'{prefix}.self_attn.o_proj.weight'] = (wide, wide)
    shapes |= {f'{prefix}.mlp.{n}_proj.weight': (inner, wide) for n in ('gate', 'up')}
    shapes[f'{prefix}.mlp.down_proj.weight'] = (wide, inner)
    return shapes | {f'{prefix}.post_attention_layernorm.weight': (wide,)}


def medusa_shapes(config):
    "Shapes of five Medusa heads: `medusa_head.state_dict()` of FasterDecoding/Medusa."
    wide, shapes = config.hidden_size, {}
    for k in range(5):
        shapes |= {f'{k}.0.linear.weight': (wide, wide), f'{k}.0.linear.bias': (wide,)}
        shapes[f'{k}.1.weight'] = (config.vocab_size, wide)
    return shapes


def eagle_shapes(config):
    "Shapes of an EAGLE layer: `Model` in cnets1.py of SafeAILab/EAGLE."
    wide = config.hidden_size
    shapes = {'embed_tokens.weight': (config.vocab_size, wide), 'fc.weight': (wide, 2 * wide)}
    return shapes | {'fc.bias': (wide,)} | llama_shapes('layers.0', config, wide)


DRAFTED = 100  # tokens of EAGLE-3's vocabulary


def eagle3_shapes(config):
    "Shapes of an EAGLE-3 layer: `Model` in cnets.py of SafeAILab/EAGLE."
    wide = config.hidden_size
    shapes = {'fc.weight': (wide, 3 * wide), 'norm.weight': (wide,)}
    shapes |= {'lm_head.weight': (DRAFTED, wide)} | llama_shapes('midlayer', config, 2 * wide)
    norms = {f'midlayer.{n}.weight': (wide,) for n in ('hidden_norm', 'input_layernorm')}
    return shapes | norms


def speculators_shapes(config):
    "Shapes of an EAGLE-3 layer: `Eagle3DraftModel` of vllm-project/speculators, with the target's embedding."
    shapes = {n.replace('midlayer', 'layers.0'): s for n, s in eagle3_shapes(config).items()}
    return shapes | {'embed_tokens.weight': (config.vocab_size, config.hidden_size)}


def hydra_shapes(config):
    "Shapes of four Hydra heads of two blocks with prefix attention: `HydraPrefixMLP` of zankner/Hydra."
    wide, shapes = config.hidden_size, {}
    for k in range(4):
        for n in ('linear', 'res_connection'):
            shapes[f'hydra_mlp.{k}.1.{n}.weight'] = (wide, (k + 2) * wide)
            shapes[f'hydra_mlp.{k}.1.{n}.bias'] = (wide,)
        shapes[f'hydra_mlp.{k}.3.linear.weight'] = (wide, wide)
        shapes[f'hydra_mlp.{k}.3.linear.bias'] = (wide,)
        shapes[f'hydra_lm_head.{k}.1.weight'] = (config.vocab_size, wide)
        shapes[f'hydra_lm_head.{k}.1.bias'] = (config.vocab_size,)
    prefix = 'prefix_embeding_layer'
    shapes |= llama_shapes(f'{prefix}.layers.0', config, wide)
    norms = (f'{prefix}.layers.0.input_layernorm.weight', f'{prefix}.norm.weight')
    shapes |= dict.fromkeys(norms, (wide,))
    embeddings = (f'{prefix}.embed_tokens.weight', 'input_embed_fn.weight')
    return shapes | dict.fromkeys(embeddings, (config.vocab_size, wide))


def heads_state(layout, config):
    "Random tensors of published heads by name: half precision, norms near one."
    shapes = dict(
        medusa=medusa_shapes,
        eagle=eagle_shapes,
        eagle3=eagle3_shapes,
        hydra=hydra_shapes,
        speculators=speculators_shapes,
    )[layout](config)
    g, state = torch.Generator().manual_seed(len(layout)), {}
    for name, shape in shapes.items():
        tensor = 0.2 * torch.randn(shape, generator=g)
        state[name] = (tensor + 1 if 'norm' in name else tensor).half()
    if layout in ('eagle3', 'speculators'):
        drafted = torch.randperm(config.vocab_size, generator=g)[:DRAFTED].sort().values
        state['d2t'] = drafted - torch.arange(DRAFTED)
        state['t2d'] = torch.zeros(config.vocab_size, dtype=torch.bool)
        state['t2d'][drafted] = True
    return state


def heads_config(layout, target, config):
    "The config.json of published heads."
    if layout == 'medusa':  # two heads, of which the file has five: as published
        return dict(base_model_name_or_path=target, medusa_num_heads=2, medusa_num_layers=1)
    if layout == 'hydra':
        about = dict(base_model_name_or_path=target, hydra_num_heads=4, hydra_num_layers=2)
        return about | dict(
            hydra_head_arch='prefix-mlp', grounded_heads=True, hidden_state_offset=0
        )
    names = (
        'vocab_size hidden_size num_attention_heads num_key_value_heads intermediate_size'.split()
    )
    about = dict(model_type='llama', num_hidden_layers=1, hidden_act='silu', rms_norm_eps=1e-6)
    about |= {name: getattr(config, name) for name in names}
    if layout == 'speculators':
        return speculators_config(target, about)
    return about | (dict(draft_vocab_size=DRAFTED) if layout == 'eagle3' else {})


def speculators_config(target, layer):
    "The config.json of heads that vLLM serves: the sizes nested, the norm before the residual."
    proposal = dict(accept_tolerance=0.0, proposal_type='greedy', speculative_tokens=3)
    verifier = dict(architectures=['LlamaForCausalLM'], name_or_path=target)
    return dict(
        architectures=['Eagle3Speculator'],
        auto_map={'': 'eagle3.Eagle3SpeculatorConfig'},
        draft_vocab_size=DRAFTED,
        eagle_aux_hidden_state_layer_ids=None,
        has_no_defaults_at_init=False,
        norm_before_residual=True,
        speculators_config=dict(
            algorithm='eagle3',
            default_proposal_method='greedy',
            proposal_methods=[proposal | dict(verifier_accept_k=1)],
            verifier=verifier,
        ),
        speculators_model_type='eagle3',
        speculators_version='0.1.0.dev42',
        target_hidden_size=None,
        torch_dtype='bfloat16',
        transformer_layer_config=layer | dict(attention_bias=False, mlp_bias=False),
    )


def write_heads(name, folder):
    "Files of the stand-in for published heads."
    layout, target = HEADS[name]
    config = configuration(*architecture_of(target), False)
    files = dict(medusa='medusa_lm_head.pt', hydra='hydra_lm_head.pt')
    state = heads_state(layout, config)
    if layout == 'speculators':
        save_file(state, folder / 'model.safetensors')
    else:
        torch.save(state, folder / files.get(layout, 'pytorch_model.bin'))
    about = json.dumps(heads_config(layout, target, config))
    (folder / 'config.json').write_text(about)


def write_model(name, folder):
    "Files of the stand-in for `name` in a folder."
    from transformers import PreTrainedTokenizerFast

    from decodelab.models.session import EMBEDDED, no_progress_bars

    if name in HEADS:
        return write_heads(name, folder)
    model_type, kind = architecture_of(name)
    if model_type == 'whisper':  # a processor is more than a tokenizer: the embedded ones stand in
        shutil.copytree(
            EMBEDDED / ('pico-whisper-draft' if DRAFT_NAMES.search(name) else 'pico-whisper'),
            folder,
            dirs_exist_ok=True,
        )
        path = Path(folder) / 'generation_config.json'  # a multilingual one: languages and tasks
        languages = {'<|en|>': 38, '<|nl|>': 39}
        more = dict(is_multilingual=True, lang_to_id=languages, task_to_id=dict(transcribe=40))
        more['_from_model_config'] = False
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
        return
    bos, eos, pad = SPECIAL[kind]
    with no_progress_bars(True):
        is_draft = bool(DRAFT_NAMES.search(name))
        model = weights(model_type, kind, is_draft, depth_of(name))
        if SAMPLES.search(name):
            model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9)
        model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(kind),
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token='<unk>',
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


SAMPLES = re.compile(r'Llama-2')  # checkpoints whose own configuration samples
PICKLED = re.compile(
    r'/opt-|codegen|vicuna|llama-68m'
)  # repositories stood in for without safetensors
SHARDED = re.compile(
    r'opt-6\.7b|codegen-6B|vicuna-7b'
)  # and those of them that are in several files


def to_pickle(folder, shards=1):
    "The weights of a folder as older repositories have them: pytorch_model.bin, with an index if in shards."
    from safetensors.torch import load_file

    folder = Path(folder)
    state = load_file(folder / 'model.safetensors')
    (folder / 'model.safetensors').unlink()
    if shards == 1:
        torch.save(state, folder / 'pytorch_model.bin')
        return
    files = [f'pytorch_model-{i + 1:05}-of-{shards:05}.bin' for i in range(shards)]
    parts = {file: dict(list(state.items())[i::shards]) for i, file in enumerate(files)}
    for file, part in parts.items():
        torch.save(part, folder / file)
    index = dict(
        metadata=dict(total_size=sum(t.numel() * t.element_size() for t in state.values())),
        weight_map={k: file for file, part in parts.items() for k in part},
    )
    (folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))


def snapshot(name, cache):
    """The stand-in for `name` as the Hub's cache keeps one.

    Blobs by hash, a commit's files that point at them, and `main`; the commit.
    """
    repo = Path(cache) / f'models--{name.replace("/", "--")}'
    commit = hashlib.sha1(name.encode()).hexdigest()
    if repo.exists():
        return commit
    made = Path(cache) / f'.{repo.name}.{os.getpid()}'
    for part in ('blobs', 'refs', f'snapshots/{commit}', 'fresh'):
        (made / part).mkdir(parents=True)
    write_model(name, made / 'fresh')
    if PICKLED.search(name) and name not in HEADS:
        to_pickle(made / 'fresh', 2 if SHARDED.search(name) else 1)
    for path in (p for p in (made / 'fresh').iterdir() if p.is_file() and p.name != 'log.jsonl'):
        blob = made / 'blobs' / hashlib.sha256(path.read_bytes()).hexdigest()
        path.replace(blob)
        (made / 'snapshots' / commit / path.name).symlink_to(
            os.path.relpath(blob, made / 'snapshots' / commit)
        )
    shutil.rmtree(made / 'fresh')
    (made / 'refs' / 'main').write_text(commit)
    try:
        made.rename(repo)  # whole or not at all: another process may have been quicker
    except OSError:
        shutil.rmtree(made)
    return commit


def signal_record(i):
    "A signal whose text is known, as a record of a speech set."
    from decodelab.zoo.signals import sample

    signal = sample(i, seed=9, test=True, snr=None)
    return dict(
        audio=dict(array=[round(float(x), 4) for x in signal.wave], sampling_rate=16_000),
        text=signal.text,
    )


def factor_record(i, column):
    "A record of FACTOR whose prefix is in a column of that name."
    return dict(
        {column: random_prose(f'factor {i}', 3)}, completion=random_prose(f'yes {i}', 1)
    ) | {f'contradiction_{j}': random_prose(f'no {i} {j}', 1) for j in range(3)}


CHAT = ('writing', 'roleplay', 'reasoning', 'math', 'coding', 'extraction', 'stem', 'humanities')
TASKS = ('translation', 'summarization', 'qa', 'math_reasoning', 'rag')
RECORDS = dict(  # data set → its i-th record
    c4=lambda i: dict(text=random_prose(f'c4 {i}', 12)),
    cnn_dailymail=lambda i: dict(
        article=random_prose(f'cnn {i}', 14), highlights=random_prose(f'cnn {i}', 2), id=str(i)
    ),
    xsum=lambda i: dict(
        document=random_prose(f'xsum {i}', 14), summary=random_prose(f'xsum {i}', 1)
    ),
    the_stack=lambda i: dict(content=random_code(f'stack {i}', 14)),
    humaneval=lambda i: dict(
        task_id=f'HumanEval/{i}',
        prompt=random_code(f'he {i}', 1),
        test='def check(candidate): assert candidate([]) == []',
        entry_point='f',
    ),
    gsm8k=lambda i: dict(
        question=random_prose(f'gsm {i}', 3),
        answer=f'{random_prose(f"gsm answer {i}", 2)} #### {i}',
    ),
    mt_bench=lambda i: dict(
        question_id=i,
        category=CHAT[i % 8],
        turns=[random_prose(f'mt {i}', 2), random_prose(f'mt turn {i}', 1)],
    ),
    spec_bench=lambda i: dict(
        question_id=i,
        category=(CHAT + TASKS * 8)[i % 48],
        turns=[random_prose(f'sb {i}', 3)] + [random_prose(f'sb turn {i}', 1)] * (i % 48 < 8),
    ),
    scrolls=lambda i: dict(
        input=random_prose(f'scrolls {i}', 14), output=random_prose(f'scrolls {i}', 1)
    ),
    commongen=lambda i: dict(
        concept_set='#'.join(f'{w}_N' for w in random.Random(i).sample(WORDS[8:28], 3)),
        scene=[random_prose(f'scene {i}', 1)],
    ),
    truthfulqa=lambda i: dict(
        question=random_prose(f'tqa {i}', 1)[:-1] + '?',
        best_answer=random_prose(f'best {i}', 1),
        correct_answers=f'{random_prose(f"best {i}", 1)}; {random_prose(f"right {i}", 1)}',
        incorrect_answers=random_prose(f'wrong {i}', 3).replace('. ', '; '),
    ),
    factor=lambda i: (
        dict(full_prefix=random_prose(f'factor {i}', 3), completion=random_prose(f'yes {i}', 1))
        | {f'contradiction_{j}': random_prose(f'no {i} {j}', 1) for j in range(3)}
    ),
    factor_wiki=lambda i: factor_record(i, 'turncated_prefixes'),
    factor_news=lambda i: factor_record(i, 'full_prefix'),
    strategyqa_train=lambda i: dict(
        qid=str(i), question=random_prose(f'sqa {i}', 1), answer=bool(i % 2)
    ),
    hagrid=lambda i: dict(
        query=random_prose(f'hagrid {i}', 1),
        query_id=str(i),
        quotes=[
            dict(idx=j, docid=f'{i}-{j}', text=random_prose(f'quote {i} {j}', 3)) for j in (1, 2)
        ],
        answers=[],
    ),
    strategyqa=lambda i: dict(
        question=random_prose(f'sqa {i}', 1),
        answer=bool(i % 2),
        facts=[random_prose(f'fact {i}', 1)],
    ),
    wikitext2=lambda i: dict(text=random_prose(f'wiki {i}', 30)),
    guide_prompt=lambda i: dict(text=random_prose(f'guide {i}', 6)),
    librispeech=signal_record,
    librispeech_dummy=signal_record,
    voxpopuli_nl=signal_record,
)

RECORD_COUNTS = dict(
    spec_bench=480, librispeech=3, librispeech_dummy=3, voxpopuli_nl=3
)  # records, where not 48


def file_text(records, ending, aka):
    "Records as the text of a file with that ending."
    if ending == '.csv':
        out = io.StringIO()
        rows = csv.DictWriter(out, [aka.get(k, k) for k in records[0]])
        rows.writeheader()
        for record in records:
            rows.writerow({aka.get(k, k): v for k, v in record.items()})
        return out.getvalue()
    if ending == '.json':
        return json.dumps(records)
    lines = [r['text'] if ending == '.txt' else json.dumps(r) for r in records]
    return '\n'.join(lines) + '\n'


def write_data(name, folder):
    "A file for the data set `name` in the folder that DECODELAB_DATA is to name, as its authors name and write it; raises `ValueError` if this file knows no such set."
    from decodelab.evaluate.datasets import SOURCES

    if name not in RECORDS:
        raise ValueError(f'{name} has no stand-in: add its records to tests/stand_ins.py')
    source = SOURCES.get(name)
    path = Path(folder) / (f'{name}/{source.file}' if source and source.file else f'{name}.jsonl')
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    text = file_text(
        [RECORDS[name](i) for i in range(RECORD_COUNTS.get(name, 48))],
        Path(path.name.removesuffix('.gz')).suffix,
        source.aliases if source else {},
    ).encode()
    fresh = path.with_name(f'.{path.name}.{os.getpid()}')
    fresh.write_bytes(gzip.compress(text) if path.suffix == '.gz' else text)
    return fresh.replace(path)


def paper_environment(
    need: dict,  # of an experiment at scale `paper`
    shelf: Path,  # the folder of stand-ins
    results: Path,
) -> dict:
    "The variables of the short form of an experiment beside its stand-ins, which are written."
    for name in (*need['models'], *need.get('further', ())):
        snapshot(name, shelf / 'hub')
    for name in need['data']:
        write_data(name, shelf / 'data')
    return dict(
        DECODELAB_SCALE='paper',
        DECODELAB_QUICK='1',
        DECODELAB_DATA=str(shelf / 'data'),
        DECODELAB_RESULTS=str(results),
    )
