"The side bar shows the branch of the page alone: pages stay small; a Sphinx extension."


def collapse(app, pagename, templatename, context, doctree):
    "Let the theme's tree of contents leave out the branches of other pages."
    whole = context.get('toctree')
    if whole:
        context['toctree'] = lambda **options: whole(**options | dict(collapse=True))


def setup(app):
    app.connect('html-page-context', collapse, priority=400)  # before the theme reads it
    return dict(parallel_read_safe=True, parallel_write_safe=True)
