// As swiglu_backward.wgsl with 16-byte accesses; I divides by 4. In place, with s = sigmoid(gate):
//   gate <- dact * up * s * (1 + gate * (1 - s)), up <- dact * gate * s; act, which holds dact, <- gate * s * up
// gate_up kept [R, 2 I], the gate in the first half of each row; act kept [R, I].
// One invocation per four elements; nothing is accumulated.

// #import lib/lanes_vec4.wgsl
// #import lib/swiglu_backward.wgsl
