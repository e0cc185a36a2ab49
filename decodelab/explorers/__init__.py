"Explorers: forms over real models, in JupyterLab."

from decodelab.core.parameter_docs import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
