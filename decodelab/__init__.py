"A literate laboratory for decoding: strategies you can read, certify and measure."
__version__ = "0.1.0"

import importlib, sys, types

# Public name -> module that defines it. A module is imported when one of its names is first asked for.
_public = {name: module for module, names in {
    'core': 'Request Rng Step Stop Trace decode',
    'models': 'LM Session load pair',
    'quantized': 'quantize',
    'corpus': 'builtin_prompts',
    'numbers': 'english german',
    'signals': 'morse dtmf noisy',
    'listener': 'error_rate',
    'rule': 'Temperature TopK TopP MinP Typical EpsilonCutoff EtaCutoff TopH TopNSigma XTC RemoveInvalid Renormalize',
    'rule_context': 'RepetitionPenalty NoRepeatNgram EncoderRepetitionPenalty EncoderNoRepeatNgram DRY SequenceBias BadWords PrefixConstrained Suppress '
                    'BeginSuppress MinLength MinNewTokens ForcedBOS ForcedEOS ExponentialDecay',
    'rule_grammar': 'JsonGrammar',
    'rule_memory': 'Guidance Mirostat',
    'rules': 'Rules rules_from to_config',
    'quality': 'rep_n diversity distinct_n bleu self_bleu edit_distance mean_distance coherence similarity isotropy plot_similarity occurrences coverage',
    'mauve': 'mauve text_states',
    'jobs': 'collect',
    'plot': 'plot_tokens plot_acceptance plot_speed save_html',
    'bench': 'bench summary load_run',
    'dataset': 'read_dataset',
    'peer': 'TransformersGenerate',
    'batch': 'decode_batch Batch',
    'sampling': 'Greedy Sample',
    'beam': 'BeamSearch BeamSample hypotheses',
    'diverse_beam': 'DiverseBeamSearch',
    'constrained_beam': 'ConstrainedBeamSearch',
    'beam_tree': 'beam_frame plot_beams',
    'beam_view': 'beam_html',
    'constraints': 'PhrasalConstraint DisjunctiveConstraint OrderedConstraint force_words phrase',
    'contrastive': 'ContrastiveSearch DiverseContrastiveSearch last_states',
    'contrasted': 'dola_layers',
    'dola': 'DoLa',
    'dola_analysis': 'layer_divergences layer_use logit_movement plot_divergences plot_movement',
    'contrastive_decoding': 'Contrast ContrastiveDecoding',
    'multiple_choice': 'Question evaluate_choices choice_summary truthfulqa factor mc1 mc2 mc3',
    'speculative': 'Speculative Draft Verdict ExactMatch FixedLookahead',
    'verifiers': 'TokenVerifier BlockVerifier',
    'verifiers_lossy': 'TypicalAcceptance Lenience',
    'verifiers_tree': 'MultiDraftVerifier',
    'assistant': 'AssistantDrafter',
    'speech': 'hear listen SharedEncoder suppressing read_wav',
    'prompt_lookup': 'PromptLookup Datastore NewestMatch FrequentMatch',
    'early_exit': 'EarlyExit',
    'suffix': 'SuffixDrafter SuffixMemory',
    'tree': 'TreeDrafter TreeShape',
    'tree_shapes': 'DynamicTreeDrafter acceptance_by_rank best_shape best_size',
    'combinations': 'FirstOf BranchDrafter StagedDrafter',
    'lookahead_decoding': 'LookaheadDrafter',
    'heads': 'load_heads save_heads',
    'heads_training': 'train_heads',
    'medusa': 'MedusaHeads MedusaDrafter',
    'eagle': 'EagleHeads EagleDrafter',
    'mtp': 'MtpDrafter MtpHeads',
    'single_position': 'SinglePositionDrafter SinglePositionHeads load_assistant',
    'overlap': 'overlap plot_overlap',
    'synthetic': 'SyntheticDrafter continuations',
    'synthetic_tree': 'SyntheticTreeDrafter',
    'universal': 'UniversalDrafter',
    'universal_intersection': 'IntersectionDrafter',
    'universal_strings': 'StringRejectionDrafter',
    'lookahead': 'HeuristicLookahead ConfidenceLookahead RocLookahead EntropyLookahead CumulativeLookahead',
    'lookahead_cost': 'CostAwareLookahead BanditLookahead Costs',
    'lookahead_classifier': 'ClassifierLookahead',
    'tuning': 'tune_lookahead Tuned',
    'replay': 'DraftTable OracleLookahead replay',
    'cost_model': 'measure_costs width_curve forecasts',
    'cost_parts': 'round_parts roofline',
    'explain': 'explain',
    'watermark': 'GreenList Evidence Mark',
    'watermark_gumbel': 'Gumbel',
    'watermark_more': 'Unigram HardList SWEET SBW',
    'watermark_transformers': 'TorchGreenList',
    'g_values': 'GValues TableHash RoundsHash',
    'knockout': 'tournament',
    'synthid': 'SynthID',
    'watermarking_config': 'mark_from_config config_from_mark',
    'unbiased': 'DiPmark',
    'chance_weighted': 'WeightedSynthID WeightedTournament weighted_mean',
    'chance_learned': 'tournament_texts',
    'detection_bayes': 'BayesianDetector reliability',
    'dual_gumbel': 'DualGumbel EitherGumbel TripleGumbel',
    'marked_speculation': 'MarkedDrafter MarkedVerifier DrafterOn dual_key',
    'marked_tradeoff': 'tradeoff_rows plot_tradeoff table_pair',
    'chance': 'Null null_of Bernoulli Exponential Tournament Lattice',
    'detection': 'detect detect_many Detection Detector combine',
    'chance_windows': 'best_window Windows Span',
    'colours': 'coloured plot_running',
    'attacks': 'Attacked Chain Delete Insert Substitute Vocabulary Own',
    'attacks_passages': 'Swap Truncate CopyPaste Spoof wrong_key',
    'attacks_characters': 'RoundTrip Homoglyphs Whitespace Invisible Case Remove Canonical canonical',
    'attacks_models': 'Proposed Paraphrase EmojiSample',
    'recipe': 'recipe generate_with',
    'recipe_export': 'export_recipe',
    'recipe_load': 'load_recipe LoadedRecipe',
    'streaming': 'stream astream stream_batch feed_streamer watch Stream AsyncStream Writing',
    'robustness': 'robustness detection_rates span_overlap auc tpr_at plot_robustness plot_roc',
    'generate': 'generate',
    'arguments_strategy': 'explain_config',
    'configuration': 'to_generation_config from_generation_config',
    'configuration_files': 'save_pretrained from_pretrained push_to_hub strategy_file',
    'pipeline': 'pipeline with_strategy',
    'distributed': 'launch scaling',
    'experiment': 'Experiment',
    'experiment_needs': 'experiments needs_of',
    'experiment_run': 'run_experiment draw_experiment',
    'report_runs': 'compare_runs claims_table',
    'certify': 'certify Certificate random_lm check_strategy check_rule check_drafter check_verifier',
}.items() for name in names.split()}

__all__ = list(_public)


def __getattr__(name):
    if name not in _public: raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = globals()[name] = getattr(importlib.import_module(f'{__name__}.{_public[name]}'), name)
    return value


def __dir__():
    return sorted({*globals(), *_public})


class _Package(types.ModuleType):
    "Keeps `decodelab.bench` the function when the module of that name is imported, and so for the others."
    def __setattr__(self, name, value):
        if name in _public and isinstance(value, types.ModuleType): value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
