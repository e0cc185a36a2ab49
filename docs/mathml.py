"Formulas as MathML, which browsers show without a script: docutils' converter as Sphinx's renderer."

import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

# commands that the converter lacks -> those it has
SAME = {
    r'\\dots\b': r'\\ldots',
    r'…': r'\\ldots',
    r'\\(big|Big)(?=[^a-zA-Z])': r'\\\1l',
    r'\\iff\b': r'\\Leftrightarrow',
    r'\\mathrel\{\+\}': r'{+}',
    r'\\texttt\b': r'\\text',
    r'\\([td]?frac)(\d)(\d)': r'\\\1{\2}{\3}',
}


def to_mathml(formula, block):
    "A formula in LaTeX as MathML; raises `MathError` where it cannot be read."
    for pattern, replacement in SAME.items():
        formula = re.sub(pattern, replacement, formula)
    return latex2mathml.tex2mathml(formula.strip(), as_block=block)


def write(translator, node, block):
    try:
        markup = to_mathml(node.astext(), block)
    except MathError as error:
        logging.getLogger(__name__).warning('formula: %s', error, location=node)
        markup = f'<code>{translator.encode(node.astext())}</code>'
    translator.body.append(f'<div class="math">{markup}</div>' if block else markup)
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer(
        'mathml',
        inline_renderers=(lambda translator, node: write(translator, node, False), None),
        block_renderers=(lambda translator, node: write(translator, node, True), None),
    )
    return dict(parallel_read_safe=True, parallel_write_safe=True)
