# The names of this part, imported when they are first used; also what editors and type checkers read.
from .engine import Engine as Engine
from .engine import Generation as Generation
from .engine import CallableEngine as CallableEngine
from .engine import RemoteModel as RemoteModel
from .transformers_generate import TransformersGenerate as TransformersGenerate
from .llama_cpp import LlamaCppEngine as LlamaCppEngine
from .llama_cpp import to_gguf as to_gguf
from .openvino import OpenVINOEngine as OpenVINOEngine
from .openvino import to_openvino as to_openvino
from .ctranslate2 import CTranslate2Engine as CTranslate2Engine
from .ctranslate2 import to_ctranslate2 as to_ctranslate2
