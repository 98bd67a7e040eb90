// In place, with s = sigmoid(gate): gate <- dact * up * s * (1 + gate * (1 - s)), up <- dact * gate * s; and act, which
// holds dact, <- gate * s * up, the forward's output, which the weight gradient of what follows multiplies.
// gate_up kept [R, 2 I], the gate in the first half of each row; act kept [R, I].
// One invocation per element; nothing is accumulated.

// #import lib/lanes_scalar.wgsl
// #import lib/swiglu_backward.wgsl
