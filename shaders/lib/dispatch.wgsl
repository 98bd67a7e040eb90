// Which item an invocation works on when one row of workgroups is too short for all items: workgroups are laid
// out in x and y, and `width` is num_workgroups.x times the workgroup size in x.
fn linearIndex(id: vec3u, width: u32) -> u32 {
  return id.y * width + id.x;
}
