output "group" {
  description = "Name of the Auto Scaling group."
  value       = aws_autoscaling_group.fleet.name
}

output "launch_template" {
  description = "Name of the launch template."
  value       = aws_launch_template.fleet.name
}

output "secret_parameter" {
  description = "Name of the parameter with the fleet's secret."
  value       = aws_ssm_parameter.fleet_secret.name
}

output "instance_profile" {
  description = "Name of the instance profile."
  value       = local.instance_profile
}

output "security_groups" {
  description = "Security groups of the instances."
  value       = local.security_groups
}

output "control_plane_policy_arn" {
  description = "ARN of the policy to attach to the role of the server, or of `comfyrelay fleet run`."
  value       = aws_iam_policy.control_plane.arn
}
