"What other programs read of a page: a card for links, a description, the map of the site."

import html
import re
from pathlib import Path
from xml.sax.saxutils import escape

from docutils import nodes

LENGTH = 200  # characters of a description
CARD = '_static/card.png'


def description(doctree, default):
    "The first paragraph of a page that says something, as plain text."
    for node in doctree.findall(nodes.paragraph) if doctree else ():
        text = ' '.join(node.astext().split())
        inside = node.parent.tagname in ('section', 'document', 'block_quote')
        if inside and len(text) > 40 and 'origin' not in node.get('classes', ()):
            return text if len(text) <= LENGTH else text[:LENGTH].rsplit(' ', 1)[0] + ' …'
    return default


def tags(properties):
    "Meta elements."
    for name, value in properties.items():
        kind = 'property' if name.startswith('og:') else 'name'
        yield f'<meta {kind}="{name}" content="{html.escape(value)}" />'


def add_tags(app, pagename, templatename, context, doctree):
    "Add the card and the description to the head of a page."
    config = app.config
    title = re.sub(r'<[^>]+>', '', html.unescape(context.get('title') or config.html_title))
    about = description(doctree, config.social_description)
    base = config.html_baseurl
    properties = {
        'description': about,
        'og:title': title,
        'og:description': about,
        'og:type': 'website' if pagename == config.root_doc else 'article',
        'og:site_name': config.html_title,
        'og:url': base + app.builder.get_target_uri(pagename),
        'og:image': base + CARD,
        'og:image:alt': config.social_image_alt,
        'twitter:card': 'summary_large_image',
    }
    context['metatags'] = context.get('metatags', '') + '\n' + '\n'.join(tags(properties))


def page_names(app):
    "The pages that a reader of the map should know."
    return sorted(app.env.found_docs)


def write_map(app, error):
    "Write sitemap.xml and robots.txt beside the pages."
    if error or app.builder.name != 'html':
        return
    base = app.config.html_baseurl
    urls = [escape(base + app.builder.get_target_uri(name)) for name in page_names(app)]
    lines = [f'<url><loc>{url}</loc></url>' for url in urls]
    head = '<?xml version="1.0" encoding="utf-8"?>'
    schema = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    out = Path(app.outdir)
    (out / 'sitemap.xml').write_text('\n'.join([head, schema, *lines, '</urlset>', '']))
    (out / 'robots.txt').write_text(f'User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n')


def setup(app):
    app.add_config_value('social_description', '', 'html')
    app.add_config_value('social_image_alt', '', 'html')
    app.connect('html-page-context', add_tags)
    app.connect('build-finished', write_map)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
