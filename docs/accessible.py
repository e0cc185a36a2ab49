"""HTML that assistive programs read as it is meant: no heading without a word, no list of one kind alone.

A Sphinx extension: tables of pandas and of Markdown may have an empty corner, and a long signature is a
list of definitions without terms."""

import re

EMPTY_HEADING = re.compile(r'<th\b([^>]*)>((?:\s|&nbsp;|<p>|</p>)*)</th>')
SIGNATURE = re.compile(r'<dl>\s*((?:<dd>(?:(?!</?d[ltd]\b).)*</dd>\s*)+)</dl>', re.S)


def accessible(body):
    "The body of a page with cells for empty headings, and lists for the parameters of a signature."
    body = EMPTY_HEADING.sub(r'<td\1>\2</td>', body)
    return SIGNATURE.sub(parameter_list, body)


def parameter_list(match):
    "The parameters of a signature, one a line."
    items = match.group(1).replace('<dd>', '<span role="listitem">').replace('</dd>', '</span>')
    return f'<span class="sig-params" role="list">{items}</span>'


def rewrite(app, pagename, templatename, context, doctree):
    if 'body' in context:
        context['body'] = accessible(context['body'])


def setup(app):
    app.connect('html-page-context', rewrite)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
