"""A stand-in for an accelerator, in memory of the CPU."""
from collections import Counter
from contextlib import contextmanager
import functools
import weakref

import torch
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = 'pretend'
aten = torch.ops.aten
TO = (aten._to_copy.default, aten.to.device, aten.to.dtype_layout, aten.to.other)
COPIES = (*TO, aten.copy_.default)
UNCOUNTED = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class Traffic(Counter):
    "Counts of `reads`, `writes` and `kernels` since the block began."
    where = None


TRAFFIC = [Traffic()]


def record(kind):
    for t in TRAFFIC:
        t[kind] += 1
        if kind == 'reads' and t.where is not None:
            import traceback
            t.where.append(''.join(traceback.format_stack(limit=14)[:-3]))


class PretendTensor(torch.Tensor):
    "A tensor on the pretend device; `memory` is the CPU tensor that holds its numbers."

    @staticmethod
    def __new__(cls, memory):
        t = torch.Tensor._make_wrapper_subclass(
            cls, memory.size(), strides=memory.stride(), storage_offset=memory.storage_offset(),
            dtype=memory.dtype, device=f'{NAME}:0')
        t.memory = memory
        return t

    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self):
        return self.memory.data_ptr()

    def untyped_storage(self):
        return self.memory.untyped_storage()

    def tolist(self):
        record('reads')
        return self.memory.tolist()

    def numpy(self, **options):
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *args):
        return self.numpy()

    def __repr__(self):
        return f'{self.memory!r} on {NAME}:0'

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), PretendTensor(self.memory.clone()))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run_kernel(func, args, kwargs or {})


def is_pretend(device):
    return device is not None and torch.device(device).type == NAME


def run_kernel(func, args, kwargs):
    tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
    check_devices(func, tensors, args)
    generator = kwargs.get('generator')
    if generator is not None and generator._cdata not in PretendGenerator.known:
        raise RuntimeError(f'Expected a {NAME!r} device type for generator but found cpu')
    count(func, args, kwargs)
    inner = tree_map_only(PretendTensor, lambda t: t.memory, (args, kwargs))
    on_host = to_host(func, args, kwargs)
    inner = tree_map_only(torch.device, lambda _: torch.device('cpu'), inner)
    result = func(*inner[0], **inner[1])
    stale = [t for t in tensors if isinstance(t, PretendTensor) and t.shape != t.memory.shape]
    if stale:
        raise NotImplementedError(f'{func} resizes a tensor of the pretend device: give it a kernel')
    if on_host:
        return result
    same = {id(t.memory): t for t in tensors if isinstance(t, PretendTensor)}
    if func is aten.copy_.default and not isinstance(args[0], PretendTensor):
        return args[0]
    if func.is_view and not tensors[0].is_inference():
        with torch.inference_mode(False):
            return tree_map_only(torch.Tensor, PretendTensor, result)
    return tree_map_only(torch.Tensor, lambda t: same.get(id(t)) if id(t) in same else PretendTensor(t), result)


def to_host(func, args, kwargs):
    if func is aten.to.other:
        return not isinstance(args[1], PretendTensor)
    return any(not is_pretend(d) for d in tree_iter((args, kwargs)) if isinstance(d, torch.device))


def check_devices(func, tensors, args):
    if func in COPIES:
        return
    host = [t for t in tensors if not isinstance(t, PretendTensor)]
    if func in INDEXING and isinstance(args[0], PretendTensor):
        host = [t for t in host if not any(t is i for i in args[1] if i is not None)]
        if any(isinstance(i, torch.Tensor) and not isinstance(i, PretendTensor) for i in args[1]):
            record('writes')
    scalars = torch.Tag.pointwise in func.tags or func in INDEXING
    host = [t for t in host if t.ndim or not scalars]
    if host:
        raise RuntimeError(
            f'Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! '
            f'({func}, shapes {[tuple(t.shape) for t in tensors]})')


def count(func, args, kwargs):
    if func in TO and (to_host(func, args, kwargs) or not isinstance(args[0], PretendTensor)):
        return record('reads' if isinstance(args[0], PretendTensor) else 'writes')
    if func is aten.copy_.default:
        to, of = (isinstance(t, PretendTensor) for t in args[:2])
        return record('kernels' if to and of else 'writes' if to else 'reads')
    tags = func.tags
    if func in INDEXING:
        masks = any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        if masks:
            record('reads')
    elif torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        record('reads')
    if func not in UNCOUNTED and not func.is_view:
        record('kernels')


class PretendGenerator(torch.Generator):
    "A generator of the pretend device."
    known = weakref.WeakValueDictionary()  # by the address of the generator inside
    def __new__(cls):
        g = super().__new__(cls)
        cls.known[g._cdata] = g
        return g
    @property
    def device(self):
        return torch.device(NAME, 0)


Original = torch.Generator


class AnyGenerator(type(Original)):
    "Of the class that stands in for `torch.Generator`: every generator is an instance of it."
    def __instancecheck__(cls, x):
        return isinstance(x, Original)


class Generators(Original, metaclass=AnyGenerator):
    def __new__(cls, device='cpu'):
        return PretendGenerator() if is_pretend(device) else Original(device)


class PretendModule:
    "What torch asks of a device's module."
    def is_initialized(self): return True
    def is_available(self): return True
    def current_device(self): return 0
    def device_count(self): return 1
    def _is_in_bad_fork(self): return False
    def manual_seed_all(self, seed): pass
    def _lazy_init(self): pass


def factory(name):
    packet, _, overload = name.partition('.')
    kernel = getattr(getattr(aten, packet), overload or 'default')

    def make(*args, device=None, **options):
        return PretendTensor(kernel(*args, device=torch.device('cpu'), **options))
    return make


@functools.cache
def register():
    _setup_privateuseone_for_python_backend(NAME, PretendModule())
    library = torch.library.Library('aten', 'IMPL')

    def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return PretendTensor(torch.empty(size, dtype=dtype, device='cpu'))

    def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        return PretendTensor(torch.empty_strided(size, stride, dtype=dtype, device='cpu'))

    def copy_from(source, target, non_blocking=False):
        record('reads' if isinstance(source, PretendTensor) else 'writes')
        to = target.memory if isinstance(target, PretendTensor) else target
        to.copy_(source.memory if isinstance(source, PretendTensor) else source)
        return target
    for name in ('arange', 'arange.start', 'arange.start_step', 'linspace', 'eye', 'eye.m'):
        library.impl(name, factory(name), 'PrivateUse1')
    library.impl('empty.memory_format', empty, 'PrivateUse1')
    library.impl('empty_strided', empty_strided, 'PrivateUse1')
    library.impl('_copy_from', copy_from, 'PrivateUse1')
    return library


@contextmanager
def pretend_device():
    "While the block runs, generators of the device can be made; `torch.device('pretend')` exists from then on."
    register()
    generator, synchronize = torch.Generator, torch.accelerator.synchronize
    torch.Generator = Generators
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a module's `to` makes new tensors
    torch.accelerator.synchronize = lambda device=None: record('synchronisations')
    try:
        yield torch.device(NAME, 0)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
        torch.Generator, torch.accelerator.synchronize = generator, synchronize


@contextmanager
def traffic(where=False):
    t = Traffic()
    t.where = [] if where else None
    TRAFFIC.append(t)
    try:
        yield t
    finally:
        TRAFFIC.remove(t)
